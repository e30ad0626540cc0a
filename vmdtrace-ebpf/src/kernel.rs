//! Everything unsafe: reads of kernel memory, map elements as references, the
//! atomic add, and the constants that user space sets at load.

use core::ffi::c_void;

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_kernel,
    generated::bpf_probe_read_kernel_str,
};
use vmdtrace_common::{
    CpuBank, DiskKey, DiskLosses, LineCell, LineEntry, LossTotals, Name, NameTable, RequestLayout,
};

use crate::maps::{BANKS, CELLS, LINES, LOSS_TOTALS, LOSSES, NAMES, REQUEST_LAYOUT, TIMING_OUT};

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

/// `kstat.irqs_sum` of a CPU.
#[inline(always)]
pub(crate) fn irqs_sum(cpu: u32) -> Option<u64> {
    let (kstat, offsets) = (constant!(KSTAT_ADDRESS), constant!(PER_CPU_OFFSET_ADDRESS));
    if kstat == 0 || offsets == 0 {
        return None;
    }
    // SAFETY: the helper checks the address and fails where it cannot be read.
    let offset: u64 =
        unsafe { bpf_probe_read_kernel((offsets + u64::from(cpu) * 8) as *const u64) }.ok()?;
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
/// as it found them, and the only word that the outer one writes at depth 0 is
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

#[inline(always)]
pub(crate) fn name_table() -> Option<&'static NameTable> {
    NAMES.get(0)
}

/// What tells the current task from every other: thread and process number.
#[inline(always)]
pub(crate) fn task() -> u64 {
    bpf_get_current_pid_tgid()
}

#[inline(always)]
fn read<T>(address: u64) -> Option<T> {
    // SAFETY: the helper checks the address and fails where it cannot be read.
    unsafe { bpf_probe_read_kernel(address as *const T) }.ok()
}

/// The disk of a `struct request` of the NVMe PCI driver.
#[inline(always)]
pub(crate) fn disk_of_request(request: u64) -> DiskKey {
    let mut key = DiskKey::default();
    let Some(layout) = REQUEST_LAYOUT.get(0) else {
        return key;
    };
    if layout.known & RequestLayout::NUMBER != 0 {
        let instance = read::<u64>(request + u64::from(layout.controller))
            .and_then(|it| read::<u32>(it + u64::from(layout.instance)));
        if let Some(instance) = instance {
            key.number = instance.wrapping_add(1);
            return key;
        }
    }
    if layout.known & RequestLayout::BLOCK_DEVICE == 0 {
        return key;
    }
    let mut disk = read::<u64>(request + u64::from(layout.disk));
    if layout.disk_of_queue != 0 {
        disk = disk.and_then(|queue| read(queue + u64::from(layout.disk_of_queue)));
    }
    // The admin queue's requests have none.
    let Some(disk) = disk.filter(|disk| *disk != 0) else {
        return key;
    };
    let name = disk + u64::from(layout.disk_name);
    let size = size_of_val(&key.block_device) as u32;
    // SAFETY: the helper checks the address; at most `size` bytes are written.
    let _zeros_where_it_fails = unsafe {
        bpf_probe_read_kernel_str(
            (&raw mut key.block_device).cast(),
            size,
            name as *const c_void,
        )
    };
    key
}

/// The request whose time-out this task handles.
#[inline(always)]
pub(crate) fn request_timing_out(task: u64) -> Option<u64> {
    // SAFETY: copied at once; only the task itself changes its entry.
    unsafe { TIMING_OUT.get(task) }.copied()
}

/// What was counted for a disk; None if the map is full.
#[inline(always)]
pub(crate) fn losses(key: &DiskKey) -> Option<&'static mut DiskLosses> {
    if LOSSES.get_ptr(key).is_none() {
        const BPF_NOEXIST: u64 = 1;
        // Another CPU may be first: then it is there all the same.
        let _there_or_full = LOSSES.insert(key, DiskLosses::default(), BPF_NOEXIST);
    }
    let losses = LOSSES.get_ptr_mut(key)?;
    // SAFETY: entries are never removed; their words are only added to, atomically.
    Some(unsafe { &mut *losses })
}

#[inline(always)]
pub(crate) fn loss_totals() -> Option<&'static mut LossTotals> {
    let totals = LOSS_TOTALS.get_ptr_mut(0)?;
    // SAFETY: an element of a map lives as long as the program; its words are
    // only added to, atomically.
    Some(unsafe { &mut *totals })
}

/// Adds 1 where another run on the same CPU may do so in between. The result
/// is never used: only then is it the instruction every kernel has.
#[inline(always)]
pub(crate) fn add_one(counter: &mut u64) {
    #[cfg(target_arch = "bpf")]
    // SAFETY: a reference is valid and aligned.
    unsafe {
        core::intrinsics::atomic_xadd::<u64, u64, { core::intrinsics::AtomicOrdering::Relaxed }>(
            counter, 1,
        );
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        *counter += 1;
    }
}
