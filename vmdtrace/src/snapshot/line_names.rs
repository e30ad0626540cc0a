//! What lines are called, for the log: all that is kept of a large server's lines
//! where nobody asks for single ones.

use crate::host::topology::{Line, Topology};

/// Number, first action and vector of each line: some 25 bytes of memory a line,
/// where a [`Line`] takes 150.
#[derive(Debug, Default)]
pub(super) struct LineNames {
    /// By interrupt number.
    lines: Vec<NamedLine>,
    /// The actions, one behind the other.
    actions: String,
}

#[derive(Debug)]
struct NamedLine {
    irq: u32,
    vector: Option<u32>,
    /// Where its action begins; it ends where the next line's begins.
    action: u32,
}

impl LineNames {
    /// Of all lines but the controllers' own vectors.
    pub(super) fn new(topology: &Topology) -> Self {
        let of_disks = topology.disks.iter().flat_map(|disk| &disk.lines);
        let of_others = topology.controllers.iter().flat_map(|it| &it.other_lines);
        let mut sorted: Vec<&Line> = of_disks.chain(of_others).collect();
        // Stable, so that a disk is told where a line is shared.
        sorted.sort_by_key(|line| line.irq);
        sorted.dedup_by_key(|line| line.irq);
        let action = |line: &'_ Line| line.actions.first().map_or(0, String::len);
        let mut names = Self {
            lines: Vec::with_capacity(sorted.len()),
            actions: String::with_capacity(sorted.iter().map(|line| action(line)).sum()),
        };
        for line in sorted {
            names.lines.push(NamedLine {
                irq: line.irq,
                vector: line.parent_irq,
                action: names.actions.len() as u32,
            });
            names
                .actions
                .push_str(line.actions.first().map_or("", String::as_str));
        }
        names
    }

    /// First action and vector of the line with this number; None where it has none.
    pub(super) fn of(&self, irq: u32) -> (Option<&str>, Option<u32>) {
        let Ok(at) = self.lines.binary_search_by_key(&irq, |line| line.irq) else {
            return (None, None);
        };
        let NamedLine { vector, action, .. } = self.lines[at];
        let end = self.lines.get(at + 1).map(|next| next.action as usize);
        let action = self
            .actions
            .get(action as usize..end.unwrap_or(self.actions.len()))
            .filter(|action| !action.is_empty());
        (action, vector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::topology::{Disk, DiskPath};

    fn line(irq: u32, actions: &[&str], parent_irq: Option<u32>) -> Line {
        Line {
            irq,
            actions: actions.iter().map(|&it| it.to_owned()).collect(),
            chip: None,
            parent_irq,
            effective_affinity: None,
        }
    }

    #[test]
    fn lines_are_told_by_number() {
        let disk = |name, lines| Disk {
            lines,
            ..Disk::bare(name, "10000:01:00.0", DiskPath::VmdRemap)
        };
        let names = LineNames::new(&Topology {
            disks: vec![
                disk(
                    "nvme1",
                    vec![
                        line(40, &["nvme1q0", "nvme1q1"], Some(30)),
                        line(42, &[], None),
                    ],
                ),
                disk(
                    "nvme0",
                    vec![line(41, &["nvme0q0"], None), line(40, &["other"], None)],
                ),
            ],
            ..Topology::default()
        });
        assert_eq!(names.of(40), (Some("nvme1q0"), Some(30)));
        assert_eq!(names.of(41), (Some("nvme0q0"), None));
        // No driver holds it.
        assert_eq!(names.of(42), (None, None));
        assert_eq!(names.of(39), (None, None));
        assert_eq!(names.of(43), (None, None));
        assert_eq!(LineNames::default().of(40), (None, None));
    }
}
