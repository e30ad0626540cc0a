//! Interrupt lines: which a device has, and what `/sys/kernel/irq` and
//! `/proc/irq` say of each.

use std::io::ErrorKind;
use std::path::Path;

use super::files::{self, Files, Listing};
use super::number_list::{NumberList, number};
use super::topology::{Controller, Disk};
use super::{HostError, Roots};

/// Chip of a VMD's children up to 6.16. From 6.17 it is `VMD-PCI-MSIX-<address>`
/// and the hardware number no longer names the vector.
const CHIP_WITH_PARENT: &str = "VMD-MSI";
/// Start of the chip name of every line that a VMD remaps.
const REMAPPED: &str = "VMD-";

/// The message-signalled interrupts of a device.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MsiIrqs {
    /// It never had any.
    Missing,
    /// Already noted as a problem.
    Unreadable,
    /// Linux interrupt numbers, rising.
    Irqs(Vec<u32>),
}

/// An interrupt line as `/sys/kernel/irq/<n>` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Irq {
    pub(super) irq: u32,
    /// Absent where the file is.
    pub(super) actions: Option<Vec<String>>,
    pub(super) chip: Option<String>,
    /// Read only for a VMD's own vectors and, to 6.16, its children.
    pub(super) hwirq: Option<u64>,
}

impl Irq {
    /// Whether a VMD delivers it, where the chip's name is known.
    pub(super) fn is_remapped(&self) -> Option<bool> {
        self.chip.as_deref().map(is_remapping_chip)
    }

    /// Whether the hardware number is the interrupt number of its VMD vector:
    /// `vmd_msi_init` passes the parent's number to `irq_domain_set_info`.
    pub(super) fn hwirq_is_parent(&self) -> bool {
        self.chip.as_deref() == Some(CHIP_WITH_PARENT)
    }
}

pub(super) fn is_remapping_chip(chip: &str) -> bool {
    chip.starts_with(REMAPPED)
}

/// The interrupt numbers in a device's `msi_irqs`.
pub(super) fn msi_irqs(files: &mut Files, device_dir: &Path) -> MsiIrqs {
    let dir = device_dir.join("msi_irqs");
    let names = match files.names(&dir) {
        Listing::Missing => return MsiIrqs::Missing,
        Listing::Unreadable => return MsiIrqs::Unreadable,
        Listing::Names(names) => names,
    };
    let mut irqs = Vec::with_capacity(names.len());
    for name in names {
        match number(&name) {
            Some(irq) => irqs.push(irq),
            None => files.problem(&dir.join(name), "is not named by an interrupt number"),
        }
    }
    irqs.sort_unstable();
    irqs.dedup();
    MsiIrqs::Irqs(irqs)
}

/// Reads a device's line.
pub(super) fn read(files: &mut Files, roots: &Roots, irq: u32) -> Irq {
    let dir = roots.sysfs.join("kernel/irq").join(irq.to_string());
    let actions = files.text(&dir.join("actions"));
    let actions = actions.map(|text| {
        let names = text.split(',').filter(|name| !name.is_empty());
        let mut actions: Vec<_> = names.map(str::to_owned).collect();
        // Most have one, and a large server has 50,000 lines.
        actions.shrink_to_fit();
        actions
    });
    let chip = files
        .text(&dir.join("chip_name"))
        .filter(|name| !name.is_empty());
    let mut line = Irq {
        irq,
        actions,
        chip,
        hwirq: None,
    };
    if line.hwirq_is_parent() {
        line.hwirq = hwirq(files, &dir);
    }
    line
}

/// Reads a VMD's own vector.
pub(super) fn read_vector(files: &mut Files, roots: &Roots, irq: u32) -> Irq {
    let mut line = read(files, roots, irq);
    if !line.hwirq_is_parent() {
        line.hwirq = hwirq(files, &roots.sysfs.join("kernel/irq").join(irq.to_string()));
    }
    line
}

fn hwirq(files: &mut Files, dir: &Path) -> Option<u64> {
    // Empty for a line outside any interrupt domain (`hwirq_show`).
    let parse = |text: &str| {
        if text.is_empty() {
            Some(None)
        } else {
            text.parse().ok().map(Some)
        }
    };
    files
        .parsed(&dir.join("hwirq"), "a hardware interrupt number", parse)
        .flatten()
}

/// The CPUs a line is delivered to now. World readable (`register_irq_proc`);
/// sysfs has no such file. Empty while the line has no vector.
pub(super) fn effective_affinity(files: &mut Files, roots: &Roots, irq: u32) -> Option<String> {
    let path = roots
        .procfs
        .join("irq")
        .join(irq.to_string())
        .join("effective_affinity_list");
    let list = files.parsed(&path, "a list of CPUs", |text| NumberList::parse(text).ok())?;
    Some(list.to_string()).filter(|list| !list.is_empty())
}

/// Notes a directory that should describe the lines found and is not there at
/// all: that is not a property of one line.
pub(super) fn check_directories(
    files: &mut Files,
    roots: &Roots,
    controllers: &[Controller],
    disks: &[Disk],
) {
    let found = controllers
        .iter()
        .any(|c| !c.vectors.is_empty() || !c.other_lines.is_empty())
        || disks.iter().any(|d| !d.lines.is_empty());
    if !found {
        return;
    }
    for (path, lost) in [
        (
            roots.sysfs.join("kernel/irq"),
            "names and chips of interrupt lines are not known",
        ),
        (
            roots.procfs.join("irq"),
            "CPU affinity is not known; is --path.procfs right?",
        ),
    ] {
        if std::fs::metadata(&path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            files.problem(&path, format_args!("is missing: {lost}"));
        }
    }
}

/// The highest interrupt number the host has now: tables of lines must hold it.
pub fn max_irq(roots: &Roots) -> Result<u32, HostError> {
    let path = roots.sysfs.join("kernel/irq");
    let names = match files::read_names(&path) {
        Ok(names) => names,
        Err(source) => return Err(HostError::Unreadable { path, source }),
    };
    let max = names.iter().filter_map(|name| number(name)).max();
    max.ok_or_else(|| HostError::Nonsense {
        path,
        what: "lists no interrupt".to_owned(),
    })
}
