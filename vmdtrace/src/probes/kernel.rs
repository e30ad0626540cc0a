//! What the programs must know of the running kernel: member offsets from its
//! BTF and addresses of data symbols from kallsyms. Versions are never parsed.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader},
    path::Path,
};

use super::{
    bio::{self, BioLayout},
    btf::{Btf, BtfError},
    kallsyms,
};
use crate::{host::Roots, snapshot::ProbeState};

/// Where the kernel keeps each CPU's count of interrupts (`kstat.irqs_sum`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptCount {
    /// Address of the per-CPU variable `kstat`.
    pub kstat: u64,
    /// Address of `__per_cpu_offset[]`.
    pub per_cpu_offset: u64,
    /// Offset of `irqs_sum` in `struct kernel_stat`.
    pub irqs_sum: u32,
}

/// How a request leads to the CPU that it was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitter {
    /// Offset of `mq_ctx` in `struct request`.
    pub request_ctx: u32,
    /// Offset of `cpu` in `struct blk_mq_ctx`.
    pub ctx_cpu: u32,
}

/// What leads from an interrupt or a PCI device to its name: member offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptLayout {
    pub data_domain: u32,
    pub data_parent: u32,
    pub data_irq: u32,
    pub domain_name: u32,
    pub domain_host_data: u32,
    /// Of the `struct device` in `struct pci_dev`.
    pub pci_device: u32,
    /// Of `kobj.name` in `struct device`.
    pub device_name: u32,
    pub device_driver: u32,
    pub driver_name: u32,
}

/// Why a fact of the kernel cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Unsupported, or blocked where the kernel has it and does not show it.
    pub state: ProbeState,
    pub reason: String,
}

impl From<String> for Missing {
    /// The kernel has no such thing.
    fn from(reason: String) -> Self {
        Self {
            state: ProbeState::Unsupported,
            reason,
        }
    }
}

/// Layout and addresses. What cannot be had carries the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLayout {
    /// Offset of `name` in `struct irqaction`.
    pub action_name: Result<u32, String>,
    /// Address of `__per_cpu_offset[]`.
    pub per_cpu_offset: Result<u64, Missing>,
    pub interrupt_count: Result<InterruptCount, Missing>,
    pub bio: Result<BioLayout, String>,
    pub interrupts: Result<InterruptLayout, String>,
    pub submitter: Result<Submitter, Missing>,
    /// Offset of `start_time_ns` in `struct request`.
    pub request_start: Result<u32, Missing>,
}

impl KernelLayout {
    /// Reads the running kernel's layout.
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        let path = roots.sysfs.join("kernel/btf/vmlinux");
        let read = fs::read(&path).map_err(|error| {
            format!(
                "{}: {error}; the kernel must be built with CONFIG_DEBUG_INFO_BTF",
                path.display()
            )
        });
        let parsed = read.as_ref().map_err(Clone::clone).and_then(|data| {
            Btf::parse(data).map_err(|error| format!("{}: {error}", path.display()))
        });
        match parsed {
            Ok(btf) => {
                let wanted = [
                    KSTAT,
                    PER_CPU_OFFSET,
                    bio::FS_BIO_SET,
                    bio::BLKDEV_DIO_POOL,
                    bio::preempt_count_symbol(&btf),
                ];
                let symbols = Symbols::read(&roots.procfs, &wanted);
                Self::find(&btf, &symbols)
            }
            Err(reason) => Self {
                action_name: Err(reason.clone()),
                per_cpu_offset: Err(reason.clone().into()),
                interrupt_count: Err(reason.clone().into()),
                submitter: Err(reason.clone().into()),
                request_start: Err(reason.clone().into()),
                interrupts: Err(reason.clone()),
                bio: Err(reason),
            },
        }
    }

    fn find(btf: &Btf<'_>, symbols: &Symbols) -> Self {
        let offset = |structure: &str, member: &str| {
            btf.member_offset(structure, member)
                .map_err(|error: BtfError| Missing::from(error.to_string()))
        };
        let interrupt_count = || {
            let irqs_sum = offset("kernel_stat", "irqs_sum")?;
            let per_cpu_offset = symbols.per_cpu_offset()?;
            let kstat = symbols.address(KSTAT).ok_or_else(|| not_listed(KSTAT))?;
            Ok(InterruptCount {
                kstat,
                per_cpu_offset,
                irqs_sum,
            })
        };
        Self {
            action_name: offset("irqaction", "name").map_err(|missing| missing.reason),
            per_cpu_offset: symbols.per_cpu_offset(),
            interrupt_count: interrupt_count(),
            bio: BioLayout::read(btf, symbols),
            interrupts: interrupts(btf).map_err(|error| error.to_string()),
            submitter: offset("request", "mq_ctx").and_then(|request_ctx| {
                let ctx_cpu = offset("blk_mq_ctx", "cpu")?;
                Ok(Submitter {
                    request_ctx,
                    ctx_cpu,
                })
            }),
            request_start: offset("request", "start_time_ns"),
        }
    }
}

fn interrupts(btf: &Btf<'_>) -> Result<InterruptLayout, BtfError> {
    let offset = |structure, member| btf.member_offset(structure, member);
    Ok(InterruptLayout {
        data_domain: offset("irq_data", "domain")?,
        data_parent: offset("irq_data", "parent_data")?,
        data_irq: offset("irq_data", "irq")?,
        domain_name: offset("irq_domain", "name")?,
        domain_host_data: offset("irq_domain", "host_data")?,
        pci_device: offset("pci_dev", "dev")?,
        device_name: offset("device", "kobj")?.saturating_add(offset("kobject", "name")?),
        device_driver: offset("device", "driver")?,
        driver_name: offset("device_driver", "name")?,
    })
}

const KSTAT: &str = "kstat";
const PER_CPU_OFFSET: &str = "__per_cpu_offset";

/// Addresses of data symbols of the kernel's image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    addresses: BTreeMap<String, u64>,
    /// Why none could be read.
    failure: Option<String>,
}

impl Symbols {
    /// Looks for symbols in the kernel's list, up to the modules'.
    #[must_use]
    pub fn read(procfs: &Path, wanted: &[&str]) -> Self {
        let read = kallsyms::open(procfs).and_then(|file| {
            // The kernel formats each line as it is read, a page at a time.
            Self::find(BufReader::with_capacity(1 << 16, file), wanted)
        });
        read.unwrap_or_else(|error| Self {
            addresses: BTreeMap::new(),
            failure: Some(format!("{}: {error}", procfs.join("kallsyms").display())),
        })
    }

    fn find(mut lines: impl BufRead, wanted: &[&str]) -> io::Result<Self> {
        let mut addresses = BTreeMap::new();
        let mut line = Vec::new();
        while addresses.len() < wanted.len() {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let Ok(text) = std::str::from_utf8(&line) else {
                continue;
            };
            let mut fields = text.split_ascii_whitespace();
            let (Some(address), Some(_), Some(name)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if fields.next().is_some() {
                // A module's: the image's are all before.
                break;
            }
            if wanted.contains(&name)
                && let Ok(address) = u64::from_str_radix(address, 16)
            {
                addresses.insert(name.to_owned(), address);
            }
        }
        Ok(Self {
            addresses,
            failure: None,
        })
    }

    /// The address of a symbol. None where it is not listed, or addresses are
    /// hidden: all are 0 then.
    #[must_use]
    pub fn address(&self, name: &str) -> Option<u64> {
        // Since 6.15 a per-CPU symbol may truly be at 0; a hidden table shows in
        // this one.
        self.per_cpu_offset().ok()?;
        self.addresses.get(name).copied()
    }

    /// Address of `__per_cpu_offset[]`.
    ///
    /// # Errors
    /// Why it is not known, and with it no other.
    pub fn per_cpu_offset(&self) -> Result<u64, Missing> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone().into());
        }
        match self.addresses.get(PER_CPU_OFFSET) {
            Some(0) => Err(Missing {
                state: ProbeState::Blocked,
                reason: "/proc/kallsyms: addresses are hidden: CAP_SYSLOG and \
                         kernel.kptr_restrict below 2 are needed"
                    .to_owned(),
            }),
            Some(address) => Ok(*address),
            None => Err(not_listed(PER_CPU_OFFSET)),
        }
    }
}

fn not_listed(name: &str) -> Missing {
    Missing::from(format!(
        "/proc/kallsyms: {name} is not listed: the kernel must be built with CONFIG_KALLSYMS_ALL"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str) -> Symbols {
        Symbols::find(text.as_bytes(), &[KSTAT, PER_CPU_OFFSET, "pcpu_hot"]).unwrap()
    }

    #[test]
    fn symbols_are_found_among_others_and_before_the_modules() {
        let symbols = find(
            "ffffffff81000000 T _stext\n0000000000034a80 D kstat\nffffffff82b00000 R __per_cpu_offset\n\
             ffffffffc0000000 t vmd_irq\t[vmd]\nffffffffc0000001 D pcpu_hot\n",
        );
        assert_eq!(symbols.address(KSTAT), Some(0x34a80));
        assert_eq!(symbols.per_cpu_offset(), Ok(0xffff_ffff_82b0_0000));
        assert_eq!(symbols.address("pcpu_hot"), None);
    }

    #[test]
    fn hidden_and_missing_symbols_are_told_apart() {
        let hidden = find("0000000000000000 D kstat\n0000000000000000 R __per_cpu_offset\n");
        assert_eq!(hidden.address(KSTAT), None);
        assert!(
            hidden
                .per_cpu_offset()
                .unwrap_err()
                .reason
                .contains("kptr_restrict")
        );
        let state = |symbols: &Symbols| symbols.per_cpu_offset().unwrap_err().state;
        assert_eq!(state(&hidden), ProbeState::Blocked);
        let missing = find("ffffffff81000000 T _stext\n");
        assert!(
            missing
                .per_cpu_offset()
                .unwrap_err()
                .reason
                .contains("KALLSYMS_ALL")
        );
        assert_eq!(state(&missing), ProbeState::Unsupported);
        let unreadable = Symbols::read(Path::new("/nonexistent"), &[KSTAT]);
        assert!(
            unreadable
                .per_cpu_offset()
                .unwrap_err()
                .reason
                .contains("/nonexistent")
        );
    }

    #[test]
    fn a_per_cpu_address_may_be_0() {
        // Since 6.15 per-CPU symbols count from 0; a hidden table shows in the other symbol.
        let symbols = find("0000000000000000 D kstat\nffffffff82b00000 R __per_cpu_offset\n");
        assert_eq!(symbols.address(KSTAT), Some(0));
    }

    #[test]
    fn no_btf_is_a_reason_not_a_zero() {
        let layout = KernelLayout::read(&Roots {
            sysfs: "/nonexistent".into(),
            procfs: "/nonexistent".into(),
        });
        assert!(
            layout
                .action_name
                .unwrap_err()
                .contains("CONFIG_DEBUG_INFO_BTF")
        );
        assert!(layout.interrupt_count.is_err() && layout.bio.is_err());
        assert!(layout.submitter.is_err() && layout.request_start.is_err());
    }
}
