//! The guest's disks, as its sysfs shows them.

use std::collections::BTreeMap;

use crate::error::{LabError, Result};

/// A shell script that prints what [`parse`] reads. `-s`: there may be no such
/// files, and a disk may go away meanwhile.
pub(crate) const SCRIPT: &str = r#"cd /sys/class/nvme 2>/dev/null || exit 0
grep -s "" nvme*/serial nvme*/address nvme*/state nvme*/nvme*n*/size; true"#;

/// One NVMe disk of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestDisk {
    /// `nvme3`; the number may be another one at every boot.
    pub name: String,
    /// Tells which emulated disk it is.
    pub serial: String,
    /// PCI address.
    pub address: String,
    /// The driver's state of the controller: `live` when it is usable.
    pub state: String,
    /// Block devices, such as `nvme3n1`.
    pub namespaces: Vec<String>,
}

/// In the order of their serial numbers, so of the emulated disks.
pub(crate) fn parse(text: &str) -> Result<Vec<GuestDisk>> {
    let mut disks: BTreeMap<&str, GuestDisk> = BTreeMap::new();
    for line in text.lines() {
        let bad = || LabError::Invalid(format!("/sys/class/nvme: not understood: {line}"));
        let (path, value) = line.split_once(':').ok_or_else(bad)?;
        let (name, field) = path.split_once('/').ok_or_else(bad)?;
        let disk = disks.entry(name).or_default();
        name.clone_into(&mut disk.name);
        match (field, field.strip_suffix("/size")) {
            (_, Some(namespace)) => disk.namespaces.push(namespace.to_owned()),
            ("serial", _) => value.trim().clone_into(&mut disk.serial),
            ("address", _) => value.clone_into(&mut disk.address),
            ("state", _) => value.clone_into(&mut disk.state),
            _ => return Err(bad()),
        }
    }
    let mut disks: Vec<_> = disks.into_values().collect();
    disks.sort_by(|a, b| a.serial.cmp(&b.serial));
    Ok(disks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_found_by_their_serials() {
        let text = "\
nvme0/serial:VMDLABA0001  \nnvme1/serial:VMDLABA0000
nvme0/address:10000:02:00.0
nvme1/address:10000:01:00.0
nvme0/state:live
nvme1/state:connecting
nvme0/nvme0n1/size:524288
";
        let disks = parse(text).unwrap();
        assert_eq!(disks.len(), 2);
        assert_eq!(
            (disks[0].name.as_str(), disks[0].state.as_str()),
            ("nvme1", "connecting")
        );
        assert!(disks[0].namespaces.is_empty());
        assert_eq!(disks[1].serial, "VMDLABA0001");
        assert_eq!(disks[1].address, "10000:02:00.0");
        assert_eq!(disks[1].namespaces, ["nvme0n1"]);
    }

    #[test]
    fn none_is_fine_and_nonsense_is_not() {
        assert_eq!(parse("").unwrap(), []);
        for text in ["x", "nvme0:1", "nvme0/other:1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
