//! Telling whether a VMD remaps its children's interrupts.
//!
//! No file says so. Three observations do, none of which needs a privilege:
//! - only a remapping driver allocates vectors for the VMD (`vmd_alloc_irqs`
//!   is called in the remapping branch of `vmd_enable_domain` alone), so
//!   `msi_irqs` is there or not;
//! - only a remapping driver requests them, under the name `vmd` or `vmd<N>`;
//! - the children's interrupt chip is the VMD's own, or the platform's.

use std::collections::BTreeMap;

use super::action::Action;
use super::irqs::{Irq, MsiIrqs, is_remapping_chip};
use super::topology::{Evidence, Mode};

/// What the VMD's vectors say by being there.
pub(super) fn from_vectors(msi_irqs: &MsiIrqs) -> Evidence {
    let (observed, mode) = match msi_irqs {
        MsiIrqs::Missing => (
            "absent: the controller has no vectors".to_owned(),
            Mode::Bypass,
        ),
        // The directory outlives the vectors of a driver that held the device before.
        MsiIrqs::Irqs(irqs) if irqs.is_empty() => (
            "empty: the controller has no vectors".to_owned(),
            Mode::Bypass,
        ),
        MsiIrqs::Irqs(irqs) => (counted(irqs.len(), "vector"), Mode::Remap),
        MsiIrqs::Unreadable => ("cannot be read".to_owned(), Mode::Unknown),
    };
    Evidence {
        source: "msi_irqs".to_owned(),
        observed,
        mode,
    }
}

/// What the names of its vectors' actions say; nothing where no vector's
/// actions could be read.
pub(super) fn from_actions(vectors: &[Irq]) -> Option<Evidence> {
    let known: Vec<&[String]> = vectors
        .iter()
        .filter_map(|vector| vector.actions.as_deref())
        .collect();
    if known.is_empty() {
        return None;
    }
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for name in known.iter().filter_map(|actions| vmd_action(actions)) {
        *names.entry(name).or_default() += 1;
    }
    let observed = if names.is_empty() {
        "no vector has the action vmd".to_owned()
    } else {
        let shown: Vec<&str> = names.keys().copied().collect();
        format!(
            "{} on {} of {}",
            shown.join(", "),
            names.values().sum::<usize>(),
            counted(vectors.len(), "vector")
        )
    };
    let mode = if names.is_empty() {
        Mode::Unknown
    } else {
        Mode::Remap
    };
    Some(Evidence {
        source: "actions".to_owned(),
        observed,
        mode,
    })
}

/// What the chips of its children's lines say, one entry per kind of chip.
pub(super) fn from_chips<'a>(children: impl Iterator<Item = &'a Irq>) -> Vec<Evidence> {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for chip in children.filter_map(|line| line.chip.as_deref()) {
        *kinds.entry(chip_kind(chip)).or_default() += 1;
    }
    let evidence = |(kind, lines): (&str, usize)| Evidence {
        source: "chip_name".to_owned(),
        observed: format!("{kind} on {}", counted(lines, "child line")),
        mode: chip_mode(kind),
    };
    kinds.into_iter().map(evidence).collect()
}

/// The mode that everything speaks for; unknown where the evidence disagrees
/// or there is none.
pub(super) fn decide(evidence: &[Evidence]) -> Mode {
    let mut modes = evidence
        .iter()
        .map(|one| one.mode)
        .filter(|&mode| mode != Mode::Unknown);
    match modes.next() {
        Some(mode) if modes.all(|other| other == mode) => mode,
        _ => Mode::Unknown,
    }
}

/// The VMD's name among the actions of a vector.
pub(super) fn vmd_action(actions: &[String]) -> Option<&str> {
    actions
        .iter()
        .map(String::as_str)
        .find(|name| Action::parse(name) == Action::Vmd)
}

/// `IR-PCI-MSIX` of `IR-PCI-MSIX-10000:01:00.0`: since 6.2 every device has a
/// chip of its own.
fn chip_kind(chip: &str) -> &str {
    match chip.rsplit_once('-') {
        Some((kind, address)) if super::topology::PciAddress::parse(address).is_some() => kind,
        _ => chip,
    }
}

fn chip_mode(kind: &str) -> Mode {
    if is_remapping_chip(kind) {
        Mode::Remap
    } else if kind
        .strip_prefix("IR-")
        .unwrap_or(kind)
        .starts_with("PCI-MSI")
    {
        Mode::Bypass
    } else {
        Mode::Unknown
    }
}

/// `1 vector`, `2 vectors`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(chip: &str) -> Irq {
        Irq {
            irq: 1,
            actions: None,
            chip: Some(chip.to_owned()),
            hwirq: None,
        }
    }

    #[test]
    fn chips_of_all_kernels() {
        let chips = [
            "VMD-MSI",
            "VMD-PCI-MSIX-10000:01:00.0",
            "VMD-PCI-MSI-10000:00:00.0",
        ];
        assert!(
            from_chips(chips.map(line).iter())
                .iter()
                .all(|one| one.mode == Mode::Remap)
        );
        let chips = [
            "PCI-MSI",
            "IR-PCI-MSI",
            "PCI-MSIX-10000:01:00.0",
            "IR-PCI-MSIX-10000:02:00.0",
            "IR-PCI-MSIX-10000:01:00.0",
        ];
        let evidence = from_chips(chips.map(line).iter());
        assert!(evidence.iter().all(|one| one.mode == Mode::Bypass));
        assert_eq!(evidence[1].observed, "IR-PCI-MSIX on 2 child lines");
        assert_eq!(
            from_chips([line("Hyper-V PCIe MSI")].iter())[0].mode,
            Mode::Unknown
        );
    }

    #[test]
    fn disagreement_is_unknown() {
        let remap = from_vectors(&MsiIrqs::Irqs(vec![1]));
        let bypass = from_vectors(&MsiIrqs::Missing);
        let silent = from_vectors(&MsiIrqs::Unreadable);
        assert_eq!(
            decide(&[remap.clone(), silent.clone(), remap.clone()]),
            Mode::Remap
        );
        assert_eq!(decide(&[silent.clone(), bypass.clone()]), Mode::Bypass);
        assert_eq!(decide(&[remap, bypass]), Mode::Unknown);
        assert_eq!(decide(&[silent]), Mode::Unknown);
        assert_eq!(decide(&[]), Mode::Unknown);
    }
}
