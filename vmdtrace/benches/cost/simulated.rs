//! A made-up host: a tree of `/sys` and `/proc`, and counters in the maps of a
//! process that observes it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use aya::maps::{Array, Map, MapData, loaded_maps};
use serde::{Deserialize, Serialize};
use vmdtrace::host::Roots;
use vmdtrace::probes::Sizes;
use vmdtrace_common::{LineCell, Name, cells::kind, samples::DiskSamples};

/// How large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) controllers: u32,
    /// Of each controller.
    pub(crate) disks: u32,
    /// Of each controller.
    pub(crate) vectors: u32,
    /// A disk has a queue for each, and the admin queue.
    pub(crate) cpus: u32,
}

/// The largest that is planned for.
pub(crate) const LARGEST: Shape = Shape {
    controllers: 8,
    disks: 24,
    vectors: 64,
    cpus: 256,
};

/// The first interrupt number: below are what every machine has.
const FIRST_IRQ: u32 = 40;
/// Slots below are left to this machine's own lines, which are really counted.
const FIRST_SLOT: u32 = 64;

const CELL_WORDS: usize = size_of::<LineCell>() / 8;
const SAMPLE_WORDS: usize = size_of::<DiskSamples>() / 8;

impl Shape {
    pub(crate) fn lines(self) -> u32 {
        self.controllers * self.vectors + self.lines_of_disks()
    }

    pub(crate) fn lines_of_disks(self) -> u32 {
        self.controllers * self.disks * (self.cpus + 1)
    }

    fn max_irq(self) -> u32 {
        FIRST_IRQ + self.lines() - 1
    }

    /// Every line: number, name, controller, and its disk if it is one's.
    fn each_line(
        self,
        mut see: impl FnMut(u32, String, u32, Option<u32>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut irq = FIRST_IRQ;
        for controller in 0..self.controllers {
            for _ in 0..self.vectors {
                see(irq, format!("vmd{controller}"), controller, None)?;
                irq += 1;
            }
            for disk in controller * self.disks..(controller + 1) * self.disks {
                for queue in 0..=self.cpus {
                    see(irq, format!("nvme{disk}q{queue}"), controller, Some(disk))?;
                    irq += 1;
                }
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            controllers,
            disks,
            vectors,
            cpus,
        } = self;
        write!(
            f,
            "{controllers} VMDs x {disks} disks, {vectors} vectors each, {cpus} CPUs"
        )
    }
}

/// Its `/sys` and `/proc`, removed in the end.
pub(crate) struct Host {
    folder: tempfile::TempDir,
    shape: Shape,
}

impl Host {
    pub(crate) fn new(shape: Shape) -> anyhow::Result<Self> {
        // 100,000 files: in memory, where there is such a place.
        let folder = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .context("cannot make a folder")?;
        let host = Self { folder, shape };
        host.fill()
            .context("cannot write the made-up /sys and /proc")?;
        Ok(host)
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots {
            sysfs: self.path("sys"),
            procfs: self.path("proc"),
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn file(&self, path: &str, content: &str) -> io::Result<()> {
        let path = self.path(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, content)
    }

    fn link(&self, path: &str, target: impl AsRef<Path>) -> io::Result<()> {
        let path = self.path(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        symlink(target, path)
    }

    /// Where a disk is below `/sys/devices`; a port of its own is above it.
    fn port(controller: u32, disk: u32) -> String {
        let index = disk + 1;
        format!(
            "pci0000:00/{}/pci1000{controller}:00/1000{controller}:00:{index:02x}.0",
            vmd(controller)
        )
    }

    fn disk(controller: u32, disk: u32) -> String {
        let (port, bus) = (Self::port(controller, disk), disk + 1);
        format!("{port}/1000{controller}:{bus:02x}:00.0")
    }

    fn pci(&self, place: &str, device: &str, class: &str, driver: Option<&str>) -> io::Result<()> {
        let address = place.rsplit('/').next().unwrap_or_default();
        for (name, content) in [
            ("vendor", "0x8086\n"),
            ("device", device),
            ("class", class),
            ("numa_node", "0\n"),
        ] {
            self.file(&format!("sys/devices/{place}/{name}"), content)?;
        }
        self.link(
            &format!("sys/bus/pci/devices/{address}"),
            format!("../../../devices/{place}"),
        )?;
        if let Some(driver) = driver {
            let up = "../".repeat(place.split('/').count() + 1);
            self.link(
                &format!("sys/devices/{place}/driver"),
                format!("{up}bus/pci/drivers/{driver}"),
            )?;
            self.link(
                &format!("sys/bus/pci/drivers/{driver}/{address}"),
                format!("../../../../devices/{place}"),
            )?;
        }
        Ok(())
    }

    fn fill(&self) -> io::Result<()> {
        let shape = self.shape;
        // What a process asks of itself, and the kernel's types, are this machine's.
        for name in ["self", "sys", "kallsyms", "thread-self"] {
            self.link(&format!("proc/{name}"), format!("/proc/{name}"))?;
        }
        self.link("sys/kernel/btf", "/sys/kernel/btf")?;
        self.link("sys/kernel/tracing", "/sys/kernel/tracing")?;
        let cpus = format!("0-{}\n", shape.cpus - 1);
        for name in ["possible", "online", "present"] {
            self.file(&format!("sys/devices/system/cpu/{name}"), &cpus)?;
        }
        for controller in 0..shape.controllers {
            let place = format!("pci0000:00/{}", vmd(controller));
            self.pci(&place, "0x28c0\n", "0x010400\n", Some("vmd"))?;
            for disk in 0..shape.disks {
                let port = Self::port(controller, disk);
                self.pci(&port, "0x352a\n", "0x060400\n", Some("pcieport"))?;
                let place = Self::disk(controller, disk);
                self.pci(&place, "0x0a54\n", "0x010802\n", Some("nvme"))?;
                let number = controller * shape.disks + disk;
                let dir = format!("{place}/nvme/nvme{number}");
                self.file(&format!("sys/devices/{dir}/transport"), "pcie\n")?;
                self.file(&format!("sys/devices/{dir}/model"), "INTEL SSDPE2KX040T8\n")?;
                self.file(
                    &format!("sys/devices/{dir}/nvme{number}n1/size"),
                    "7814037168\n",
                )?;
                self.link(
                    &format!("sys/class/nvme/nvme{number}"),
                    format!("../../devices/{dir}"),
                )?;
            }
        }
        // Files that are the same everywhere are one file.
        self.file("same/msix", "msix\n")?;
        let (msix, one) = (self.path("same/msix"), self.path("same/affinity"));
        fs::write(&one, "0\n")?;
        fs::create_dir_all(self.path("proc/irq"))?;
        fs::create_dir_all(self.path("sys/kernel/irq"))?;
        let mut lists = BTreeSet::new();
        shape.each_line(|irq, name, controller, disk| {
            let (place, chip) = match disk {
                Some(disk) => (
                    Self::disk(controller, disk - controller * shape.disks),
                    format!("VMD-PCI-MSIX-{controller}"),
                ),
                None => (
                    format!("pci0000:00/{}", vmd(controller)),
                    "IR-PCI-MSIX".to_owned(),
                ),
            };
            let chip_file = self.path(&format!("same/{chip}"));
            if lists.insert(chip.clone()) {
                fs::write(&chip_file, format!("{chip}\n"))?;
            }
            let list = self.path(&format!("sys/devices/{place}/msi_irqs"));
            if lists.insert(place) {
                fs::create_dir_all(&list)?;
            }
            fs::hard_link(&msix, list.join(irq.to_string()))?;
            let dir = self.path(&format!("sys/kernel/irq/{irq}"));
            fs::create_dir(&dir)?;
            fs::write(dir.join("actions"), format!("{name}\n"))?;
            // One line of a device tells the mode as well as all do.
            if lists.insert(format!("{chip} {disk:?}")) {
                fs::hard_link(&chip_file, dir.join("chip_name"))?;
            }
            if disk.is_none() {
                fs::write(dir.join("hwirq"), "\n")?;
                let dir = self.path(&format!("proc/irq/{irq}"));
                fs::create_dir(&dir)?;
                fs::hard_link(&one, dir.join("effective_affinity_list"))?;
            }
            Ok(())
        })
    }

    /// Counts something on every line and disk, in the maps of the observer that
    /// was started last.
    pub(crate) fn count(&self) -> anyhow::Result<()> {
        let sizes = Sizes::for_host(self.shape.cpus, self.shape.max_irq());
        let mut cells = map::<CELL_WORDS>("CELLS", sizes.slots)?;
        let mut slot = FIRST_SLOT;
        let mut vector = FIRST_SLOT;
        self.shape.each_line(|irq, name, controller, disk| {
            let is_vector = disk.is_none();
            if is_vector && irq == FIRST_IRQ + self.first_of(controller) {
                vector = slot;
            }
            let mut words = [0; CELL_WORDS];
            let mut set = |at: usize, value: u64| words[at / 8] |= value << (at % 8 * 8);
            let runs = u64::from(irq) + 1;
            let own = if is_vector {
                offset_of!(LineCell, depth0_runs)
            } else {
                offset_of!(LineCell, nested_runs)
            };
            set(own, runs);
            set(offset_of!(LineCell, inclusive_ns), 900 * runs);
            set(offset_of!(LineCell, self_ns), 400 * runs);
            if !is_vector {
                set(offset_of!(LineCell, completions), 3 * runs);
                set(offset_of!(LineCell, parent), u64::from(vector) + 1);
            }
            set(offset_of!(LineCell, irq), irq.into());
            let of_kind = if is_vector {
                kind::VMD_VECTOR
            } else {
                kind::NVME
            };
            set(offset_of!(LineCell, kind), of_kind.into());
            set(offset_of!(LineCell, ready), 1);
            for (index, word) in Name::new(name.as_bytes()).0.into_iter().enumerate() {
                let at = offset_of!(LineCell, name) + 8 * index;
                set(at, word);
            }
            cells.set(slot, words, 0).map_err(io::Error::other)?;
            slot += 1;
            Ok(())
        })?;
        let mut samples = map::<SAMPLE_WORDS>("SAMPLES", vmdtrace_common::samples::DISKS)?;
        for disk in 0..self.shape.controllers * self.shape.disks {
            let mut words = [0; SAMPLE_WORDS];
            words[4] = u64::from(disk) + 1;
            words[32] = 90_000;
            samples.set(disk + 1, words, 0)?;
        }
        Ok(())
    }

    /// Completions and hardware interrupts that [`Host::count`] counts.
    pub(crate) fn counted(&self) -> (u64, u64) {
        let mut counted = (0, 0);
        // Nothing in it fails.
        let _done = self.shape.each_line(|irq, _, _, disk| {
            match disk {
                Some(_) => counted.0 += 3 * (u64::from(irq) + 1),
                None => counted.1 += u64::from(irq) + 1,
            }
            Ok(())
        });
        counted
    }

    /// How many lines come before a controller's first.
    fn first_of(&self, controller: u32) -> u32 {
        self.shape.lines() / self.shape.controllers * controller
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }
}

fn vmd(controller: u32) -> String {
    format!("0000:{:02x}:00.5", 16 * controller + 7)
}

/// The newest map of this name and length: others may run beside.
fn map<const WORDS: usize>(
    name: &str,
    length: u32,
) -> anyhow::Result<Array<MapData, [u64; WORDS]>> {
    let mut newest = None;
    for info in loaded_maps() {
        let info = info.context("cannot list the kernel's maps")?;
        if info.name_as_str() == Some(name) && info.max_entries() == length {
            newest = newest.max(Some(info.id()));
        }
    }
    let id = newest.with_context(|| format!("no map {name} of {length} elements is loaded"))?;
    let map = Map::Array(MapData::from_id(id)?);
    Ok(map.try_into()?)
}
