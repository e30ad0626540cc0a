//! For tests and the bench: memory for made-up irqactions and requests, and where
//! the kernel has it. The programs under test read through these addresses as they
//! do real ones. And programs that do nothing, to compare with, and one that
//! counts a process's system calls.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(target_arch = "bpf", feature(core_intrinsics))]
#![cfg_attr(
    target_arch = "bpf",
    expect(internal_features, reason = "the only way to an atomic add on BPF")
)]

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::Array,
    helpers::bpf_get_current_pid_tgid,
    macros::{btf_map, raw_tracepoint},
    programs::RawTracePointContext,
};

/// Kernel memory that user space fills.
#[btf_map]
static MEMORY: Array<[u8; 8192], 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Its address.
#[btf_map]
static ADDRESS: Array<u64, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// The process whose system calls are counted, by its number.
#[btf_map]
static PROCESS: Array<u64, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// How many it has made.
#[btf_map]
static SYSTEM_CALLS: Array<u64, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

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

/// Does nothing: what calling any program costs in its place.
#[raw_tracepoint(tracepoint = "irq_handler_entry")]
pub(crate) fn empty_entry(_: RawTracePointContext) -> i32 {
    0
}

#[raw_tracepoint(tracepoint = "irq_handler_exit")]
pub(crate) fn empty_exit(_: RawTracePointContext) -> i32 {
    0
}

#[raw_tracepoint(tracepoint = "block_rq_complete")]
pub(crate) fn empty_end(_: RawTracePointContext) -> i32 {
    0
}

/// sys_enter(struct pt_regs *regs, long id)
#[raw_tracepoint(tracepoint = "sys_enter")]
pub(crate) fn count_system_calls(_: RawTracePointContext) -> i32 {
    let this = bpf_get_current_pid_tgid() >> 32;
    let (Some(process), Some(count)) = (PROCESS.get_ptr(0), SYSTEM_CALLS.get_ptr_mut(0)) else {
        return 0;
    };
    // SAFETY: the element lives as long as the program; one word, written whole.
    if unsafe { core::ptr::read_volatile(process) } != this {
        return 0;
    }
    #[cfg(target_arch = "bpf")]
    // SAFETY: as above; the word is only added to, atomically.
    unsafe {
        core::intrinsics::atomic_xadd::<u64, u64, { core::intrinsics::AtomicOrdering::Relaxed }>(
            count, 1,
        );
    }
    #[cfg(not(target_arch = "bpf"))]
    // SAFETY: never runs: this crate is compiled for the host by clippy only.
    unsafe {
        *count += 1;
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
