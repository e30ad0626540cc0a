//! What the name of an interrupt action tells.

use super::number_list::number;

/// Whose action it is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A vector of a VMD controller: `vmd` up to 5.15, then `vmd0` and so on
    /// (`vmd_alloc_irqs` in drivers/pci/controller/vmd.c).
    Vmd,
    /// A queue of an NVMe controller: `nvme0q1` (`queue_request_irq` in
    /// drivers/nvme/host/pci.c). Queue 0 is the admin queue.
    NvmeQueue { disk: u32, queue: u32 },
    /// Anything else.
    Other,
}

impl Action {
    #[must_use]
    pub fn parse(name: &str) -> Self {
        if let Some(instance) = name.strip_prefix("vmd")
            && (instance.is_empty() || number(instance).is_some())
        {
            return Self::Vmd;
        }
        match nvme_queue(name) {
            Some((disk, queue)) => Self::NvmeQueue { disk, queue },
            None => Self::Other,
        }
    }
}

fn nvme_queue(name: &str) -> Option<(u32, u32)> {
    let (disk, queue) = name.strip_prefix("nvme")?.split_once('q')?;
    Some((number(disk)?, number(queue)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, action) in [
            ("vmd", Action::Vmd),
            ("vmd12", Action::Vmd),
            ("vmdx", Action::Other),
            ("vmd-1", Action::Other),
            ("nvme0q0", Action::NvmeQueue { disk: 0, queue: 0 }),
            (
                "nvme31q256",
                Action::NvmeQueue {
                    disk: 31,
                    queue: 256,
                },
            ),
            ("nvme0", Action::Other),
            ("nvmeq1", Action::Other),
            ("nvme0q", Action::Other),
            ("nvme0q+1", Action::Other),
            ("nvme0q99999999999", Action::Other),
            ("nvme-tcp", Action::Other),
            ("", Action::Other),
        ] {
            assert_eq!(Action::parse(name), action, "{name}");
        }
    }
}
