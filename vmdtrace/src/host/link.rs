//! The state of a PCI Express link, as each of its ends tells it.

use std::path::Path;

use super::files::Files;
use super::number_list::number;
use super::topology::Link;

/// Reads the link of the device in `dir`; nothing where it has none.
pub(super) fn read(files: &mut Files, dir: &Path) -> Option<Link> {
    let mut speed = |name| {
        files
            .parsed(&dir.join(name), "a speed such as 16.0 GT/s PCIe", speed)
            .flatten()
    };
    let current_speed = speed("current_link_speed");
    let max_speed = speed("max_link_speed");
    let mut width = |name| {
        files
            .parsed(&dir.join(name), "a number of lanes", width)
            .flatten()
    };
    let link = Link {
        current_speed,
        max_speed,
        current_width: width("current_link_width"),
        max_width: width("max_link_width"),
    };
    (link != Link::default()).then_some(link)
}

/// `16.0 GT/s PCIe`, before 5.12 also `16 GT/s`; `Unknown` is a link that is
/// down or a device without one (`pci_speed_string` in drivers/pci/probe.c):
/// that is no nonsense, but no speed either.
fn speed(text: &str) -> Option<Option<u32>> {
    if text.starts_with("Unknown") {
        return Some(None);
    }
    let (number_text, _) = text.split_once(" GT/s")?;
    let (whole, tenths) = number_text.split_once('.').unwrap_or((number_text, "0"));
    let one_digit = tenths.len() == 1;
    let speed = number(whole)?
        .checked_mul(1000)?
        .checked_add(number(tenths)? * 100)?;
    one_digit.then_some(Some(speed))
}

/// 0 and 255 (`PCIE_LNK_WIDTH_UNKNOWN`) are no width.
fn width(text: &str) -> Option<Option<u32>> {
    let width = number(text)?;
    Some((1..=64).contains(&width).then_some(width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fixture::Tree;

    #[test]
    fn speeds_of_all_kernels() {
        for (text, expected) in [
            ("2.5 GT/s PCIe", Some(Some(2500))),
            ("16.0 GT/s PCIe", Some(Some(16_000))),
            ("32.0 GT/s PCIe", Some(Some(32_000))),
            ("8 GT/s", Some(Some(8000))),
            ("Unknown", Some(None)),
            ("Unknown speed", Some(None)),
            ("16.05 GT/s", None),
            ("-1.0 GT/s", None),
            ("99999999999.0 GT/s", None),
            ("fast", None),
            ("", None),
        ] {
            assert_eq!(speed(text), expected, "{text}");
        }
        assert_eq!(width("16"), Some(Some(16)));
        assert_eq!((width("0"), width("255")), (Some(None), Some(None)));
        assert_eq!(width("x4"), None);
    }

    #[test]
    fn a_reduced_link_a_missing_one_and_nonsense() {
        let tree = Tree::new();
        tree.dir("sys/none");
        for (name, content) in [
            ("current_link_speed", "8.0 GT/s PCIe\n"),
            ("max_link_speed", "16.0 GT/s PCIe\n"),
            ("current_link_width", "2\n"),
            ("max_link_width", "four\n"),
        ] {
            tree.file(&format!("sys/disk/{name}"), content);
        }
        let mut files = Files::default();
        assert_eq!(read(&mut files, &tree.path("sys/none")), None);
        assert_eq!(
            read(&mut files, &tree.path("sys/disk")),
            Some(Link {
                current_speed: Some(8000),
                max_speed: Some(16_000),
                current_width: Some(2),
                max_width: None,
            })
        );
        let problems = files.into_problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].ends_with("max_link_width: \"four\" is not a number of lanes"));
    }
}
