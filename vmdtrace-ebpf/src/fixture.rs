//! For tests: memory for made-up irqactions and requests, and where the kernel
//! has it. The programs under test read through these addresses as they do real
//! ones.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::Array,
    macros::{btf_map, raw_tracepoint},
    programs::RawTracePointContext,
};

/// Kernel memory that user space fills.
#[btf_map]
static MEMORY: Array<[u8; 8192], 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Its address.
#[btf_map]
static ADDRESS: Array<u64, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Never attached: a test runs it once.
#[raw_tracepoint(tracepoint = "irq_handler_entry")]
pub(crate) fn tell_address(_: RawTracePointContext) -> i32 {
    if let (Some(memory), Some(address)) = (MEMORY.get_ptr(0), ADDRESS.get_ptr_mut(0)) {
        // SAFETY: the element lives as long as the program.
        unsafe { *address = memory as u64 };
    }
    0
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[cfg(not(target_arch = "bpf"))]
fn main() {
    // Compiled for the host by clippy and rust-analyzer only.
}
