//! Everything unsafe: reads of kernel memory, map elements as references, the
//! atomic add, and the constants that user space sets at load.

use core::ffi::c_void;

use aya_ebpf::helpers::{
    bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_kernel,
    generated::bpf_probe_read_kernel_str,
};
use vmdtrace_common::{
    CpuBank, LineCell, LineEntry, Name, NameTable, Place,
    samples::{DiskSamples, Pending, pending_index},
};

use crate::maps::{BANKS, CELLS, LINES, NAMES, PENDING_ENDS, PLACES, SAMPLES, VMD_IRQ_CALLS};

// Set by the loader from the running kernel's BTF and kallsyms.

/// Offset of `name` in `struct irqaction`.
#[unsafe(no_mangle)]
static ACTION_NAME_OFFSET: u32 = 0;
/// Address of the per-CPU variable `kstat`; 0 if it cannot be known.
#[unsafe(no_mangle)]
static KSTAT_ADDRESS: u64 = 0;
/// Address of `__per_cpu_offset[]`; 0 if it cannot be known.
#[unsafe(no_mangle)]
static PER_CPU_OFFSET_ADDRESS: u64 = 0;
/// Offset of `irqs_sum` in `struct kernel_stat`.
#[unsafe(no_mangle)]
static IRQS_SUM_OFFSET: u32 = 0;
/// 0: no clock is read.
#[unsafe(no_mangle)]
static TIMING: u32 = 1;

/// 1: where a completion lands is told, by the two offsets below.
#[unsafe(no_mangle)]
static PLACEMENT: u32 = 0;
/// Offset of `mq_ctx` in `struct request`.
#[unsafe(no_mangle)]
static REQUEST_CTX_OFFSET: u32 = 0;
/// Offset of `cpu` in `struct blk_mq_ctx`.
#[unsafe(no_mangle)]
static CTX_CPU_OFFSET: u32 = 0;
/// 1: times are sampled, by the offset below.
#[unsafe(no_mangle)]
static SAMPLING: u32 = 0;
/// Offset of `start_time_ns` in `struct request`.
#[unsafe(no_mangle)]
static REQUEST_START_OFFSET: u32 = 0;

/// Reads a constant that the loader may have set: the compiler must not take
/// its initial value for granted.
macro_rules! constant {
    ($name:ident) => {
        // SAFETY: the static is initialised, aligned and never written.
        unsafe { core::ptr::read_volatile(&raw const $name) }
    };
}

#[inline(always)]
pub(crate) fn now() -> u64 {
    if constant!(TIMING) == 0 {
        return 0;
    }
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}

#[inline(always)]
pub(crate) fn cpu() -> u32 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_get_smp_processor_id() }
}

/// `__per_cpu_offset` of a CPU.
#[inline(always)]
pub(crate) fn per_cpu_offset(cpu: u32) -> Option<u64> {
    let offsets = constant!(PER_CPU_OFFSET_ADDRESS);
    if offsets == 0 {
        return None;
    }
    // SAFETY: the helper checks the address and fails where it cannot be read.
    unsafe { bpf_probe_read_kernel((offsets + u64::from(cpu) * 8) as *const u64) }.ok()
}

/// `kstat.irqs_sum` of a CPU.
#[inline(always)]
pub(crate) fn irqs_sum(cpu: u32) -> Option<u64> {
    let kstat = constant!(KSTAT_ADDRESS);
    if kstat == 0 {
        return None;
    }
    let offset = per_cpu_offset(cpu)?;
    let address = kstat
        .wrapping_add(offset)
        .wrapping_add(u64::from(constant!(IRQS_SUM_OFFSET)));
    // SAFETY: as above.
    unsafe { bpf_probe_read_kernel(address as *const u64) }.ok()
}

/// The name of an irqaction. None if memory cannot be read.
#[inline(always)]
pub(crate) fn action_name(action: u64) -> Option<Name> {
    let field = action.wrapping_add(u64::from(constant!(ACTION_NAME_OFFSET)));
    // SAFETY: the helper checks the address and fails where it cannot be read.
    let text: u64 = unsafe { bpf_probe_read_kernel(field as *const u64) }.ok()?;
    string(text)
}

/// The text at an address of kernel memory, cut to the length of a name.
#[inline(always)]
pub(crate) fn string(text: u64) -> Option<Name> {
    let mut name = Name::default();
    let size = size_of::<Name>() as u32;
    // SAFETY: as above; at most `size` bytes are written. What lies behind the
    // NUL stays zero: the kernel copies byte by byte up to it
    // (mm/maccess.c, strncpy_from_kernel_nofault).
    let copied =
        unsafe { bpf_probe_read_kernel_str((&raw mut name).cast(), size, text as *const c_void) };
    (copied >= 0).then_some(name)
}

/// This CPU's bank.
///
/// A program's run may be interrupted by another on the same CPU, if it is
/// nvme_sq's in task or softirq context. The inner run leaves depth and frames
/// as it found them, and the words that the outer one writes at depth 0 are
/// added to atomically. User space writes `generation` and `armed`, each read
/// once in a run.
#[inline(always)]
pub(crate) fn bank(cpu: u32) -> Option<&'static mut CpuBank> {
    let bank = BANKS.get_ptr_mut(cpu)?;
    // SAFETY: an element of a map lives as long as the program, and no other
    // CPU writes this one; for runs within a run see above.
    Some(unsafe { &mut *bank })
}

/// What is known of an interrupt number.
#[inline(always)]
pub(crate) fn line(irq: u32) -> Option<&'static mut LineEntry> {
    let line = LINES.get_ptr_mut(irq)?;
    // SAFETY: as above; the kernel runs one number's handlers on one CPU at a
    // time. Per-CPU interrupts are the exception: their entries are only ever
    // overwritten with the same words, because no such line is ours.
    Some(unsafe { &mut *line })
}

/// The counters of a slot.
#[inline(always)]
pub(crate) fn cell(slot: u32) -> Option<&'static mut LineCell> {
    let cell = CELLS.get_ptr_mut(slot)?;
    // SAFETY: as above; a slot belongs to one interrupt number.
    Some(unsafe { &mut *cell })
}

/// Calls of vmd_irq for an interrupt number.
#[inline(always)]
pub(crate) fn vmd_irq_calls(irq: u32) -> Option<&'static mut u64> {
    let calls = VMD_IRQ_CALLS.get_ptr_mut(irq)?;
    // SAFETY: an element of a map lives as long as the program; the kernel runs
    // one number's handlers on one CPU at a time.
    Some(unsafe { &mut *calls })
}

#[inline(always)]
pub(crate) fn tells_placement() -> bool {
    constant!(PLACEMENT) != 0
}

#[inline(always)]
pub(crate) fn samples_times() -> bool {
    constant!(SAMPLING) != 0
}

/// The CPU that a request was made on (block/blk-mq.c, blk_mq_rq_ctx_init). None
/// if it has no such context, or memory cannot be read.
#[inline(always)]
pub(crate) fn submitter(request: u64) -> Option<u32> {
    let field = request.wrapping_add(u64::from(constant!(REQUEST_CTX_OFFSET)));
    // SAFETY: the helper checks the address and fails where it cannot be read.
    let ctx: u64 = unsafe { bpf_probe_read_kernel(field as *const u64) }.ok()?;
    if ctx == 0 {
        return None;
    }
    let field = ctx.wrapping_add(u64::from(constant!(CTX_CPU_OFFSET)));
    // SAFETY: as above.
    unsafe { bpf_probe_read_kernel(field as *const u32) }.ok()
}

/// When a request began; 0 if the kernel did not note it.
#[inline(always)]
pub(crate) fn start_of(request: u64) -> u64 {
    let field = request.wrapping_add(u64::from(constant!(REQUEST_START_OFFSET)));
    // SAFETY: the helper checks the address and fails where it cannot be read.
    unsafe { bpf_probe_read_kernel(field as *const u64) }.unwrap_or(0)
}

#[inline(always)]
pub(crate) fn place(cpu: u32) -> Option<Place> {
    let place = PLACES.get_ptr(cpu)?;
    // SAFETY: an element of a map lives as long as the program; one word, that
    // user space writes whole.
    Some(unsafe { core::ptr::read_volatile(place) })
}

/// A disk's samples.
#[inline(always)]
pub(crate) fn disk_samples(index: u32) -> Option<&'static mut DiskSamples> {
    let samples = SAMPLES.get_ptr_mut(index)?;
    // SAFETY: as above; every word is only added to, atomically.
    Some(unsafe { &mut *samples })
}

/// Where a request's end is awaited.
#[inline(always)]
pub(crate) fn pending(request: u64) -> Option<&'static mut Pending> {
    let pending = PENDING_ENDS.get_ptr_mut(pending_index(request))?;
    // SAFETY: as above; two CPUs may write one element at once, which its check
    // word tells.
    Some(unsafe { &mut *pending })
}

#[inline(always)]
pub(crate) fn name_table() -> Option<&'static NameTable> {
    NAMES.get(0)
}

/// Adds where another run or another CPU may do so in between. The result is
/// never used: only then is it the instruction every kernel has.
#[inline(always)]
pub(crate) fn add(counter: &mut u64, count: u64) {
    #[cfg(target_arch = "bpf")]
    // SAFETY: a reference is valid and aligned.
    unsafe {
        core::intrinsics::atomic_xadd::<u64, u64, { core::intrinsics::AtomicOrdering::Relaxed }>(
            counter, count,
        );
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        *counter += count;
    }
}
