//! The eBPF programs: interrupt handlers ([`irq`]), NVMe completions
//! ([`completion`]), bios ([`bio`]), time-outs ([`loss`]) and what is done to a
//! VMD's interrupts ([`msi`]). What they count is decided in `vmdtrace_common`;
//! here are only the hooks, the maps and, in [`kernel`] and [`bio_kernel`], the
//! reads of kernel memory.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(target_arch = "bpf", feature(core_intrinsics))]
#![cfg_attr(
    target_arch = "bpf",
    expect(internal_features, reason = "the only way to an atomic add on BPF")
)]

mod bio;
mod bio_kernel;
mod completion;
mod irq;
mod kernel;
mod loss;
mod maps;
mod msi;
mod self_test;

/// Lets the kernel's GPL-only helpers be called.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[cfg(not(target_arch = "bpf"))]
fn main() {
    // Compiled for the host by clippy and rust-analyzer only.
}
