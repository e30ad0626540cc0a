//! The kernel's own count of an interrupt line.

use super::{HostError, NumberList, Roots, files};

/// How many CPUs the kernel lists in a line's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PossibleCpus(pub u64);

impl PossibleCpus {
    /// # Errors
    /// If the list of possible CPUs cannot be read or understood.
    pub fn read(roots: &Roots) -> Result<Self, HostError> {
        let path = roots.sysfs.join("devices/system/cpu/possible");
        let text = match files::read_text(&path) {
            Ok(text) => text,
            Err(source) => return Err(HostError::Unreadable { path, source }),
        };
        match NumberList::parse(&text) {
            Ok(list) => Ok(Self(list.count())),
            Err(error) => Err(HostError::Nonsense {
                path,
                what: error.to_string(),
            }),
        }
    }
}

/// Interrupts of a line on all CPUs, as the kernel counts them, modulo 2^32 as
/// each CPU's count is (kernel/irq/irqdesc.c, per_cpu_count_show).
///
/// # Errors
/// If the file cannot be read or understood, or was cut: sysfs shows 4,096
/// bytes at most, which are not enough for the counts of some 400 CPUs.
pub fn line_count(roots: &Roots, irq: u32, cpus: PossibleCpus) -> Result<u32, HostError> {
    let path = roots.sysfs.join(format!("kernel/irq/{irq}/per_cpu_count"));
    let text = match files::read_text(&path) {
        Ok(text) => text,
        Err(source) => return Err(HostError::Unreadable { path, source }),
    };
    let nonsense = |what: String| HostError::Nonsense {
        path: path.clone(),
        what,
    };
    let mut listed = 0;
    let mut sum = 0_u32;
    for count in text.split(',') {
        let Ok(count) = count.parse::<u32>() else {
            return Err(nonsense(format!("{} is not a count", files::quoted(count))));
        };
        listed += 1;
        sum = sum.wrapping_add(count);
    }
    // The last number of a text that was cut may be a part of one.
    if listed != cpus.0 || text.len() >= 4095 {
        return Err(nonsense(format!(
            "lists {listed} of {} CPUs: the kernel cut it",
            cpus.0
        )));
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn count(text: &str, cpus: u64) -> Result<u32, String> {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: dir.path().into(),
            procfs: dir.path().into(),
        };
        fs::create_dir_all(dir.path().join("kernel/irq/7")).unwrap();
        fs::write(dir.path().join("kernel/irq/7/per_cpu_count"), text).unwrap();
        line_count(&roots, 7, PossibleCpus(cpus)).map_err(|error| error.to_string())
    }

    #[test]
    fn counts_are_summed_modulo_the_kernels_width() {
        assert_eq!(count("1,0,41\n", 3), Ok(42));
        assert_eq!(count("4294967295,2\n", 2), Ok(1));
    }

    #[test]
    fn a_short_text_is_no_count() {
        let error = count("1,2\n", 3).unwrap_err();
        assert!(error.contains("irq/7/per_cpu_count"), "{error}");
        assert!(error.contains("2 of 3 CPUs"), "{error}");
        // As many numbers as CPUs, and yet the last may be a part of one.
        let full = vec!["1000000000"; 400].join(",");
        assert!(count(&full[..4095], 373).unwrap_err().contains("cut"));
        assert!(count("", 1).unwrap_err().contains("not a count"));
        assert!(count("1,x", 2).unwrap_err().contains("\"x\""));
    }
}
