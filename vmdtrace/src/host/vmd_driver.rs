//! What the driver `vmd` that is loaded can do, by its own description of itself.

use std::fs::File;
use std::io::Read as _;

use super::Roots;

/// Much more than the driver's has.
const MAX_BTF_BYTES: u64 = 1 << 20;
/// A flag that each server part has that may bypass (`enum vmd_features` in
/// drivers/pci/controller/vmd.c), and what the names of all flags begin with.
const CAN_BYPASS: &[u8] = b"VMD_FEAT_CAN_BYPASS_MSI_REMAP\0";
const FLAGS: &[u8] = b"VMD_FEAT_";

/// Whether it knows bypass, by the names in its BTF. Absent where it is not
/// loaded or has no BTF, as before 5.11.
pub(super) fn knows_bypass(roots: &Roots) -> Option<bool> {
    let file = File::open(roots.sysfs.join("kernel/btf/vmd")).ok()?;
    let mut btf = Vec::new();
    file.take(MAX_BTF_BYTES).read_to_end(&mut btf).ok()?;
    let has = |name: &[u8]| btf.windows(name.len()).any(|it| it == name);
    has(FLAGS).then(|| has(CAN_BYPASS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fixture::Tree;

    #[test]
    fn by_the_names_of_its_flags() {
        let tree = Tree::new();
        assert_eq!(knows_bypass(&tree.roots()), None);
        let knows = |names: &str| {
            tree.file("sys/kernel/btf/vmd", names);
            knows_bypass(&tree.roots())
        };
        let shadow = "\0vmd_features\0VMD_FEAT_HAS_MEMBAR_SHADOW\0";
        assert_eq!(
            knows(&format!("{shadow}VMD_FEAT_CAN_BYPASS_MSI_REMAP\0")),
            Some(true)
        );
        assert_eq!(knows(shadow), Some(false));
        // Its flags are not in it, so nothing is told.
        assert_eq!(knows("\0vmd_dev\0"), None);
    }
}
