//! What the programs for bios must know of the running kernel, and which of them
//! it takes.

use aya::EbpfLoader;
use serde::{Deserialize, Serialize};

use super::{
    btf::{Btf, BtfError},
    hook::Hook,
    kernel::{Missing, Symbols},
    programs::{Attachment, Spec},
};
use crate::snapshot::{
    ProbeState,
    probes::{
        BIO_ALLOC_BIOSET_ENTRY, BIO_ALLOC_BIOSET_EXIT, BIO_ALLOC_BIOSET_EXIT_3_ARGS,
        BIO_ALLOC_IRQ_CACHE_SPLICE, BIO_KMALLOC, BIO_PUT, BLK_RQ_UNMAP_USER,
    },
};

/// Data symbols of sets that are told by address.
pub const FS_BIO_SET: &str = "fs_bio_set";
pub const BLKDEV_DIO_POOL: &str = "blkdev_dio_pool";
const PCPU_HOT: &str = "pcpu_hot";
const PREEMPT_COUNT: &str = "__preempt_count";

/// The per-CPU variable that holds `preempt_count`, by the kernel's BTF.
#[must_use]
pub fn preempt_count_symbol(btf: &Btf<'_>) -> &'static str {
    match btf.member_offset(PCPU_HOT, "preempt_count") {
        Ok(_) => PCPU_HOT,
        Err(_) => PREEMPT_COUNT,
    }
}

/// The cache of a set of bios, where `bio_alloc_bioset` uses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// Offset of `cache` in `struct bio_set`.
    offset: u32,
    /// It has a list that interrupts fill.
    pub irq_list: bool,
    alloc_cache_bit: u32,
}

/// Where a CPU's `preempt_count` is, and which of its bits are which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PreemptCount {
    address: u64,
    hardirq_mask: u32,
    interrupt_mask: u32,
}

/// Layout of bios and their sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BioLayout {
    next: u32,
    opf: u32,
    flags: u32,
    count: u32,
    pool: u32,
    slab: u32,
    front_pad: u32,
    back_pad: Option<u32>,
    slab_name: u32,
    reffed_bit: u32,
    /// `REQ_POLLED`, `REQ_HIPRI` before.
    polled_bit: u32,
    drv_in: u32,
    drv_out: u32,
    parameters: usize,
    pub cache: Option<Cache>,
    fs_bio_set: u64,
    blkdev_dio_pool: u64,
    /// Why a CPU's part of a per-CPU variable cannot be found, if so.
    per_cpu_offset: Result<(), Missing>,
    preempt_count: Result<PreemptCount, Missing>,
}

impl BioLayout {
    /// Reads it from BTF and kallsyms.
    ///
    /// # Errors
    /// Why bios cannot be followed on this kernel.
    pub fn read(btf: &Btf<'_>, symbols: &Symbols) -> Result<Self, String> {
        Self::find(btf, symbols).map_err(|error| error.to_string())
    }

    fn find(btf: &Btf<'_>, symbols: &Symbols) -> Result<Self, BtfError> {
        let address = |name| symbols.address(name).unwrap_or_default();
        let polled_bit = btf
            .enumerator("__REQ_POLLED")
            .or_else(|_| btf.enumerator("__REQ_HIPRI"))?;
        Ok(Self {
            next: btf.member_offset("bio", "bi_next")?,
            opf: btf.member_offset("bio", "bi_opf")?,
            flags: btf.member_offset("bio", "bi_flags")?,
            count: btf.member_offset("bio", "__bi_cnt")?,
            pool: btf.member_offset("bio", "bi_pool")?,
            slab: btf.member_offset("bio_set", "bio_slab")?,
            front_pad: btf.member_offset("bio_set", "front_pad")?,
            back_pad: btf.member_offset("bio_set", "back_pad").ok(),
            slab_name: btf.member_offset("kmem_cache", "name")?,
            reffed_bit: btf.enumerator("BIO_REFFED")?,
            polled_bit,
            drv_in: btf.enumerator("REQ_OP_DRV_IN")?,
            drv_out: btf.enumerator("REQ_OP_DRV_OUT")?,
            parameters: btf.parameters("bio_alloc_bioset")?,
            cache: cache(btf)?,
            fs_bio_set: address(FS_BIO_SET),
            blkdev_dio_pool: address(BLKDEV_DIO_POOL),
            per_cpu_offset: symbols.per_cpu_offset().map(drop),
            preempt_count: preempt_count(btf, symbols),
        })
    }

    /// Sets the programs' constants.
    pub fn set<'a>(layout: Option<&'a Self>, loader: &mut EbpfLoader<'a>) {
        let Some(layout) = layout else { return };
        for (name, value) in [
            ("BIO_NEXT", &layout.next),
            ("BIO_OPF", &layout.opf),
            ("BIO_FLAGS", &layout.flags),
            ("BIO_COUNT", &layout.count),
            ("BIO_POOL", &layout.pool),
            ("BIO_SET_SLAB", &layout.slab),
            ("BIO_SET_FRONT_PAD", &layout.front_pad),
            ("SLAB_NAME", &layout.slab_name),
            ("BIO_REFFED_BIT", &layout.reffed_bit),
            ("BIO_POLLED_BIT", &layout.polled_bit),
            ("BIO_OP_DRV_IN", &layout.drv_in),
            ("BIO_OP_DRV_OUT", &layout.drv_out),
        ] {
            loader.override_global(name, value, true);
        }
        if let Some(back_pad) = &layout.back_pad {
            loader.override_global("BIO_SET_BACK_PAD", back_pad, true);
        }
        if let Some(cache) = &layout.cache {
            loader.override_global("BIO_SET_CACHE", &cache.offset, true);
            loader.override_global("BIO_ALLOC_CACHE_BIT", &cache.alloc_cache_bit, true);
            let irq_list: &u32 = if cache.irq_list { &1 } else { &0 };
            loader.override_global("BIO_IRQ_LIST", irq_list, true);
        }
        loader.override_global("FS_BIO_SET_ADDRESS", &layout.fs_bio_set, true);
        loader.override_global("BLKDEV_DIO_POOL_ADDRESS", &layout.blkdev_dio_pool, true);
        if let Ok(count) = &layout.preempt_count {
            loader.override_global("PREEMPT_COUNT_ADDRESS", &count.address, true);
            loader.override_global("HARDIRQ_MASK", &count.hardirq_mask, true);
            loader.override_global("INTERRUPT_MASK", &count.interrupt_mask, true);
        }
    }

    /// Whether the context of a free can be told; if not, why not.
    ///
    /// # Errors
    /// The reason.
    pub fn context(&self) -> Result<(), Missing> {
        self.per_cpu_offset.clone()?;
        self.preempt_count
            .as_ref()
            .map(|_| ())
            .map_err(Clone::clone)
    }
}

/// None where the kernel has none that `bio_alloc_bioset` uses: before 5.15, and
/// until 5.18, where another function did (block/bio.c, `bio_alloc_kiocb`).
fn cache(btf: &Btf<'_>) -> Result<Option<Cache>, BtfError> {
    let (Ok(offset), Ok(alloc_cache_bit)) = (
        btf.member_offset("bio_set", "cache"),
        btf.enumerator("__REQ_ALLOC_CACHE"),
    ) else {
        return Ok(None);
    };
    // The programs read the words in one go: `CacheWords` in vmdtrace-common.
    let member = |name| btf.member_offset("bio_alloc_cache", name);
    let words = (member("free_list")?, member("free_list_irq"));
    let irq_list = match words {
        (0, Ok(8)) if member("nr")? == 16 && member("nr_irq")? == 20 => true,
        (0, Err(_)) => false,
        _ => {
            return Err(BtfError::None(
                "known layout of",
                "bio_alloc_cache: this vmdtrace is too old for the kernel".to_owned(),
            ));
        }
    };
    Ok(Some(Cache {
        offset,
        irq_list,
        alloc_cache_bit,
    }))
}

fn preempt_count(btf: &Btf<'_>, symbols: &Symbols) -> Result<PreemptCount, Missing> {
    if btf
        .member_offset("task_struct", "softirq_disable_cnt")
        .is_ok()
    {
        return Err("this kernel (PREEMPT_RT) counts softirqs by task"
            .to_owned()
            .into());
    }
    let symbol = preempt_count_symbol(btf);
    let base = symbols.address(symbol).ok_or_else(|| {
        format!("{symbol} is not listed in kallsyms: the kernel must be built with CONFIG_KALLSYMS_ALL, for x86-64")
    })?;
    let offset = btf.member_offset(symbol, "preempt_count").unwrap_or(0);
    // Since 7.3 it has 64 bits, 8 of which, from bit 16 on, count how often
    // interrupts were disabled (include/linux/preempt.h, HARDIRQ_DISABLE_BITS).
    // Where BTF has no variables it is older.
    let wide = btf.variable_bytes(symbol) == Ok(8);
    let shift = if wide { 24 } else { 16 };
    Ok(PreemptCount {
        address: base.wrapping_add(offset.into()),
        hardirq_mask: 0xf << shift,
        interrupt_mask: 0xff << shift,
    })
}

/// The programs for bios in the order they are attached. A call's start before
/// its end: a call that is under way does not meet a program attached later, so
/// every end has had its start. What this kernel has no use for, or cannot run,
/// says so.
#[must_use]
pub fn programs(layout: &Result<BioLayout, String>) -> Vec<Attachment> {
    let spec = |name, hook| Spec {
        name,
        hook,
        required: false,
    };
    let entry = |name| spec(name, Hook::FunctionEntry(name));
    let exit = |name| spec(name, Hook::FunctionExit("bio_alloc_bioset"));
    let unsupported = |specs: &[Spec], reason: &str| -> Vec<Attachment> {
        let one = |spec: &Spec| Attachment::unless_refused(*spec, ProbeState::Unsupported, reason);
        specs.iter().map(one).collect()
    };
    let layout = match layout {
        Ok(layout) => layout,
        Err(reason) => {
            return unsupported(&[exit(BIO_ALLOC_BIOSET_EXIT), entry(BIO_PUT)], reason);
        }
    };
    let mut calls = Vec::new();
    let mut others = vec![entry(BIO_PUT)];
    match layout.parameters {
        3 => calls.push(exit(BIO_ALLOC_BIOSET_EXIT_3_ARGS)),
        5 => {
            if let Some(cache) = layout.cache {
                let start = Hook::FunctionEntry("bio_alloc_bioset");
                calls.push(spec(BIO_ALLOC_BIOSET_ENTRY, start));
                if cache.irq_list {
                    calls.push(entry(BIO_ALLOC_IRQ_CACHE_SPLICE));
                }
            }
            calls.push(exit(BIO_ALLOC_BIOSET_EXIT));
            others.extend([entry(BIO_KMALLOC), entry(BLK_RQ_UNMAP_USER)]);
        }
        count => {
            let reason = format!(
                "bio_alloc_bioset has {count} parameters: this vmdtrace is too old for the kernel"
            );
            return unsupported(&[exit(BIO_ALLOC_BIOSET_EXIT), entry(BIO_PUT)], &reason);
        }
    }
    // Where the caches cannot be read, no call can be told. A refusal by the
    // kernel is the better reason.
    let readable = match (&layout.cache, &layout.per_cpu_offset) {
        (Some(_), Err(missing)) => Err(missing),
        _ => Ok(()),
    };
    let calls = calls.into_iter().map(|spec| match readable {
        Ok(()) => Attachment::new(spec),
        Err(Missing { state, reason }) => Attachment::unless_refused(spec, *state, reason),
    });
    calls
        .chain(others.into_iter().map(Attachment::new))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: BioLayout = BioLayout {
        next: 0,
        opf: 16,
        flags: 20,
        count: 108,
        pool: 120,
        slab: 0,
        front_pad: 8,
        back_pad: None,
        slab_name: 96,
        reffed_bit: 5,
        polled_bit: 22,
        drv_in: 34,
        drv_out: 35,
        parameters: 5,
        cache: Some(Cache {
            offset: 16,
            irq_list: true,
            alloc_cache_bit: 23,
        }),
        fs_bio_set: 0,
        blkdev_dio_pool: 0,
        per_cpu_offset: Ok(()),
        preempt_count: Ok(PreemptCount {
            address: 0,
            hardirq_mask: 0xf_0000,
            interrupt_mask: 0xff_0000,
        }),
    };

    fn names(layout: &BioLayout) -> Vec<&'static str> {
        let programs = programs(&Ok(layout.clone()));
        programs.iter().map(Attachment::name).collect()
    }

    #[test]
    fn a_call_s_start_is_attached_before_its_end() {
        assert_eq!(
            names(&LAYOUT),
            [
                BIO_ALLOC_BIOSET_ENTRY,
                BIO_ALLOC_IRQ_CACHE_SPLICE,
                BIO_ALLOC_BIOSET_EXIT,
                BIO_PUT,
                BIO_KMALLOC,
                BLK_RQ_UNMAP_USER
            ]
        );
    }

    #[test]
    fn kernels_without_a_cache_need_no_start() {
        let old = BioLayout {
            parameters: 3,
            cache: None,
            ..LAYOUT
        };
        assert_eq!(names(&old), [BIO_ALLOC_BIOSET_EXIT_3_ARGS, BIO_PUT]);
        let new = BioLayout {
            parameters: 6,
            ..LAYOUT
        };
        assert_eq!(names(&new), [BIO_ALLOC_BIOSET_EXIT, BIO_PUT]);
        assert_eq!(programs(&Err("no BTF".to_owned())).len(), 2);
    }

    #[test]
    fn a_context_needs_both_its_parts() {
        assert_eq!(LAYOUT.context(), Ok(()));
        let hidden = BioLayout {
            per_cpu_offset: Err("hidden".to_owned().into()),
            ..LAYOUT
        };
        assert_eq!(hidden.context(), Err("hidden".to_owned().into()));
        let realtime = BioLayout {
            preempt_count: Err("by task".to_owned().into()),
            ..LAYOUT
        };
        assert_eq!(realtime.context(), Err("by task".to_owned().into()));
    }
}
