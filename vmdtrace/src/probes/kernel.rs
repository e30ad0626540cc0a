//! What the programs must know of the running kernel: member offsets from its
//! BTF and addresses of two data symbols from kallsyms. Versions are never parsed.

use std::{
    fs::{self, File},
    io::{self, BufReader},
    path::Path,
};

use super::btf::{Btf, BtfError};
use crate::host::Roots;

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

/// How a request leads to the CPU that it was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitter {
    /// Offset of `mq_ctx` in `struct request`.
    pub request_ctx: u32,
    /// Offset of `cpu` in `struct blk_mq_ctx`.
    pub ctx_cpu: u32,
}

/// Layout and addresses. What cannot be had carries the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLayout {
    /// Offset of `name` in `struct irqaction`.
    pub action_name: Result<u32, String>,
    pub interrupt_count: Result<InterruptCount, String>,
    pub interrupts: Result<InterruptLayout, String>,
    pub submitter: Result<Submitter, String>,
    /// Offset of `start_time_ns` in `struct request`.
    pub request_start: Result<u32, String>,
}

impl KernelLayout {
    /// Reads the running kernel's layout.
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        let path = roots.sysfs.join("kernel/btf/vmlinux");
        match fs::read(&path) {
            Ok(data) => Self::from_btf(&data, || symbols(&roots.procfs.join("kallsyms"))),
            Err(error) => {
                let reason = format!(
                    "{}: {error}; the kernel must be built with CONFIG_DEBUG_INFO_BTF",
                    path.display()
                );
                Self {
                    action_name: Err(reason.clone()),
                    interrupt_count: Err(reason.clone()),
                    interrupts: Err(reason.clone()),
                    submitter: Err(reason.clone()),
                    request_start: Err(reason),
                }
            }
        }
    }

    fn from_btf(data: &[u8], symbols: impl FnOnce() -> Result<(u64, u64), String>) -> Self {
        let offset = |structure: &str, member: &str| {
            Btf::parse(data)
                .and_then(|btf| btf.member_offset(structure, member))
                .map_err(|error: BtfError| error.to_string())
        };
        let interrupt_count = offset("kernel_stat", "irqs_sum").and_then(|irqs_sum| {
            let (kstat, per_cpu_offset) = symbols()?;
            Ok(InterruptCount {
                kstat,
                per_cpu_offset,
                irqs_sum,
            })
        });
        Self {
            action_name: offset("irqaction", "name"),
            interrupt_count,
            interrupts: interrupts(offset),
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

fn interrupts(
    offset: impl Fn(&str, &str) -> Result<u32, String>,
) -> Result<InterruptLayout, String> {
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

/// Addresses of `kstat` and `__per_cpu_offset`.
fn symbols(path: &Path) -> Result<(u64, u64), String> {
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    find_symbols(BufReader::new(file)).map_err(|reason| format!("{}: {reason}", path.display()))
}

fn find_symbols(lines: impl io::BufRead) -> Result<(u64, u64), String> {
    let (mut kstat, mut per_cpu_offset) = (None, None);
    for line in lines.split(b'\n') {
        let line = line.map_err(|error| error.to_string())?;
        let Ok(line) = std::str::from_utf8(&line) else {
            continue;
        };
        let mut fields = line.split_ascii_whitespace();
        let (Some(address), Some(_), Some(name), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let slot = match name {
            "kstat" => &mut kstat,
            "__per_cpu_offset" => &mut per_cpu_offset,
            _ => continue,
        };
        *slot = u64::from_str_radix(address, 16).ok();
        if kstat.is_some() && per_cpu_offset.is_some() {
            break;
        }
    }
    match (kstat, per_cpu_offset) {
        (Some(kstat), Some(per_cpu_offset)) if per_cpu_offset != 0 => Ok((kstat, per_cpu_offset)),
        (Some(_), Some(_)) => Err("addresses are hidden: CAP_SYSLOG and kernel.kptr_restrict below 2 are needed".into()),
        _ => Err("kstat or __per_cpu_offset is not listed: the kernel must be built with CONFIG_KALLSYMS_ALL".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_found_among_others() {
        let text = "ffffffff81000000 T _stext\n0000000000034a80 D kstat\nffffffffc0000000 t vmd_irq\t[vmd]\nffffffff82b00000 R __per_cpu_offset\n";
        assert_eq!(
            find_symbols(text.as_bytes()),
            Ok((0x34a80, 0xffff_ffff_82b0_0000))
        );
    }

    #[test]
    fn hidden_and_missing_symbols_are_told_apart() {
        let hidden = "0000000000000000 D kstat\n0000000000000000 R __per_cpu_offset\n";
        assert!(
            find_symbols(hidden.as_bytes())
                .unwrap_err()
                .contains("kptr_restrict")
        );
        assert!(
            find_symbols("ffffffff81000000 T _stext\n".as_bytes())
                .unwrap_err()
                .contains("KALLSYMS_ALL")
        );
    }

    #[test]
    fn a_per_cpu_address_may_be_0() {
        // Since 6.15 per-CPU symbols count from 0; a hidden table shows in the other symbol.
        let text = "0000000000000000 D kstat\nffffffff82b00000 R __per_cpu_offset\n";
        assert_eq!(
            find_symbols(text.as_bytes()),
            Ok((0, 0xffff_ffff_82b0_0000))
        );
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
        assert!(layout.interrupt_count.is_err());
        assert!(layout.submitter.is_err() && layout.request_start.is_err());
    }
}
