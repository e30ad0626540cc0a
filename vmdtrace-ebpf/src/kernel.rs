//! Everything unsafe: reads of kernel memory, map elements as references, the
//! atomic add, and the constants that user space sets at load.

use core::ffi::c_void;

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_kernel,
    generated::bpf_probe_read_kernel_str,
};
use vmdtrace_common::{
    CpuBank, DiskKey, DiskLosses, LineCell, LineEntry, LossTotals, Name, NameTable, Place,
    RequestLayout,
    msi::{DOMAIN_PREFIX, MsiTotals, OperationKey},
    samples::{DiskSamples, Pending, pending_index},
    shares::{self, Share},
};

use crate::maps::{
    BANKS, CELLS, LINE_OWNERS, LINES, LOSS_TOTALS, LOSSES, MSI_TOTALS, NAMES, OPERATIONS, OUTSIDE,
    PENDING_ENDS, PER_CPU_OFFSETS, PLACES, REQUEST_LAYOUT, SAMPLES, SHARES, TIMING_OUT,
    VMD_IRQ_CALLS,
};

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
/// Offsets of `domain`, `parent_data` and `irq` in `struct irq_data`.
#[unsafe(no_mangle)]
static IRQ_DATA_DOMAIN: u32 = 0;
#[unsafe(no_mangle)]
static IRQ_DATA_PARENT: u32 = 0;
#[unsafe(no_mangle)]
static IRQ_DATA_IRQ: u32 = 0;
/// Offsets of `name` and `host_data` in `struct irq_domain`.
#[unsafe(no_mangle)]
static IRQ_DOMAIN_NAME: u32 = 0;
#[unsafe(no_mangle)]
static IRQ_DOMAIN_HOST_DATA: u32 = 0;
/// Offset of `dev` in `struct pci_dev`.
#[unsafe(no_mangle)]
static PCI_DEVICE: u32 = 0;
/// Offsets of `kobj.name` and `driver` in `struct device`.
#[unsafe(no_mangle)]
static DEVICE_NAME: u32 = 0;
#[unsafe(no_mangle)]
static DEVICE_DRIVER: u32 = 0;
/// Offset of `name` in `struct device_driver`.
#[unsafe(no_mangle)]
static DRIVER_NAME: u32 = 0;
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

/// Never set.
#[unsafe(no_mangle)]
static ZERO: u32 = 0;

/// 1: what each CPU does for each controller is counted.
#[unsafe(no_mangle)]
static COUNT_SHARES: u32 = 0;

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

/// 0, for who must not know.
#[inline(always)]
pub(crate) fn zero() -> u32 {
    constant!(ZERO)
}

/// Time since the machine started, whatever is measured else.
#[inline(always)]
pub(crate) fn clock() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}

#[inline(always)]
pub(crate) fn cpu() -> u32 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_get_smp_processor_id() }
}

/// `__per_cpu_offset` of this CPU. It never changes (arch/x86/kernel/setup_percpu.c,
/// setup_per_cpu_areas), so the kernel is asked for it once.
#[inline(always)]
pub(crate) fn per_cpu_offset(cpu: u32) -> Option<u64> {
    let offsets = constant!(PER_CPU_OFFSET_ADDRESS);
    if offsets == 0 {
        return None;
    }
    let known = PER_CPU_OFFSETS.get_ptr_mut(cpu)?;
    // SAFETY: an element of a map lives as long as the program; this CPU alone
    // writes it, a run within a run writes the same.
    let offset = unsafe { core::ptr::read_volatile(known) };
    if offset != 0 {
        return Some(offset);
    }
    let address = (offsets + u64::from(cpu) * 8) as *const u64;
    // SAFETY: the helper checks the address and fails where it cannot be read.
    let offset = unsafe { bpf_probe_read_kernel(address) }.ok()?;
    // SAFETY: as above.
    unsafe { core::ptr::write_volatile(known, offset) };
    Some(offset)
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

#[inline(always)]
pub(crate) fn counts_shares() -> bool {
    constant!(COUNT_SHARES) != 0
}

/// Whose a slot's line is, as user space told.
#[inline(always)]
pub(crate) fn owner(slot: u32) -> u8 {
    let Some(word) = LINE_OWNERS.get_ptr(shares::word_of(slot)) else {
        return 0;
    };
    // SAFETY: an element of a map lives as long as the program; one word, that
    // user space writes whole.
    shares::owner_in(unsafe { core::ptr::read_volatile(word) }, slot)
}

/// A CPU's share of an owner.
#[inline(always)]
pub(crate) fn share(cpu: u32, owner: u32) -> Option<&'static mut Share> {
    let share = SHARES.get_ptr_mut(shares::index_of(cpu, owner))?;
    // SAFETY: as for a bank; written at the end of handlers only, which no other
    // handler interrupts.
    Some(unsafe { &mut *share })
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

/// Adds a completion outside any handler to its disk's; one that finds no room in the
/// map is in the CPU's count alone.
#[inline(always)]
pub(crate) fn count_outside(key: &DiskKey) {
    if OUTSIDE.get_ptr(key).is_none() {
        const BPF_NOEXIST: u64 = 1;
        // Another CPU may be first: then it is there all the same.
        let _there_or_full = OUTSIDE.insert(key, 0, BPF_NOEXIST);
    }
    if let Some(count) = OUTSIDE.get_ptr_mut(key) {
        // SAFETY: entries are never removed, and this CPU's count is only added to,
        // atomically.
        add(unsafe { &mut *count }, 1);
    }
}

#[inline(always)]
pub(crate) fn loss_totals() -> Option<&'static mut LossTotals> {
    let totals = LOSS_TOTALS.get_ptr_mut(0)?;
    // SAFETY: an element of a map lives as long as the program; its words are
    // only added to, atomically.
    Some(unsafe { &mut *totals })
}

/// A string of the kernel's, by the address of the pointer to it; what cannot be
/// read is empty.
#[inline(always)]
fn text<const N: usize>(field: u64) -> [u8; N] {
    let mut text = [0; N];
    if let Some(address) = read::<u64>(field) {
        // SAFETY: the helper checks the address; at most N bytes are written.
        let _zeros_where_it_fails = unsafe {
            bpf_probe_read_kernel_str((&raw mut text).cast(), N as u32, address as *const c_void)
        };
    }
    text
}

/// What tells the controller that made a domain of interrupts.
#[inline(always)]
pub(crate) fn domain(domain: u64) -> OperationKey {
    let key = OperationKey {
        name: text(domain.wrapping_add(u64::from(constant!(IRQ_DOMAIN_NAME)))),
        ..OperationKey::default()
    };
    // 7.3 makes it before there is a number, so that it is -1. Since 6.17 the
    // domain knows its struct vmd_dev, which starts with the PCI device.
    if key.name[DOMAIN_PREFIX.len()] != b'-' {
        return key;
    }
    let host_data = domain.wrapping_add(u64::from(constant!(IRQ_DOMAIN_HOST_DATA)));
    read::<u64>(host_data)
        .and_then(read::<u64>)
        .and_then(vmd_address)
        .unwrap_or(key)
}

/// What tells the controller that a child's `struct irq_data` belongs to, and
/// its number. Since 6.17 a child has a domain of its own above the controller's.
#[inline(always)]
pub(crate) fn domain_of_child(data: u64) -> (OperationKey, u32) {
    let offset = |data: u64, offset: u32| data.wrapping_add(u64::from(offset));
    let irq = read(offset(data, constant!(IRQ_DATA_IRQ))).unwrap_or_default();
    let parent: u64 = read(offset(data, constant!(IRQ_DATA_PARENT))).unwrap_or_default();
    let own: u64 = read(offset(data, constant!(IRQ_DATA_DOMAIN))).unwrap_or_default();
    let name: [u8; DOMAIN_PREFIX.len() + 1] = text(offset(own, constant!(IRQ_DOMAIN_NAME)));
    if name[..DOMAIN_PREFIX.len()] == DOMAIN_PREFIX {
        return (domain(own), irq);
    }
    let above: u64 = read(offset(parent, constant!(IRQ_DATA_DOMAIN))).unwrap_or_default();
    (domain(above), irq)
}

/// The address of a `struct pci_dev`, if it is a VMD's.
#[inline(always)]
pub(crate) fn vmd_address(device: u64) -> Option<OperationKey> {
    let device = device.wrapping_add(u64::from(constant!(PCI_DEVICE)));
    let driver: u64 = read(device.wrapping_add(u64::from(constant!(DEVICE_DRIVER))))?;
    if driver == 0 {
        return None;
    }
    let driver: [u8; 8] = text(driver.wrapping_add(u64::from(constant!(DRIVER_NAME))));
    if driver != *b"vmd\0\0\0\0\0" {
        return None;
    }
    Some(OperationKey {
        name: text(device.wrapping_add(u64::from(constant!(DEVICE_NAME)))),
        ..OperationKey::default()
    })
}

/// The counter of an operation; None if the map is full.
#[inline(always)]
pub(crate) fn operations(key: &OperationKey) -> Option<&'static mut u64> {
    if OPERATIONS.get_ptr(key).is_none() {
        const BPF_NOEXIST: u64 = 1;
        // Another CPU may be first: then it is there all the same.
        let _there_or_full = OPERATIONS.insert(key, 0, BPF_NOEXIST);
    }
    let counter = OPERATIONS.get_ptr_mut(key)?;
    // SAFETY: entries are never removed; they are only added to, atomically.
    Some(unsafe { &mut *counter })
}

#[inline(always)]
pub(crate) fn msi_totals() -> Option<&'static mut MsiTotals> {
    let totals = MSI_TOTALS.get_ptr_mut(0)?;
    // SAFETY: an element of a map lives as long as the program. Its counters are
    // only added to, atomically; its buckets need not be exact.
    Some(unsafe { &mut *totals })
}

/// Adds 1 where another run on the same CPU may do so in between.
#[inline(always)]
pub(crate) fn add_one(counter: &mut u64) {
    add(counter, 1);
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
