//! What a virtual server is built from.

use std::path::PathBuf;

use xtask_setup::{DebianRoot, GuestPrograms, Kernel, Profile, Qemu, Setup};

use crate::error::{LabError, Result};
use crate::initramfs::Archive;
use crate::modules::{Module, Modules};
use crate::systemd;

/// Modules the agent needs before it can talk to the host.
const CHANNEL_MODULES: [&str; 2] = ["virtio_pci", "virtio_console"];
/// Modules that are in every guest; which are loaded, and when, is another thing.
const MODULES: [&str; 4] = ["virtio_net", "vmd", "nvme", NULL_BLOCK];
/// A block device that waits for nothing.
pub const NULL_BLOCK: &str = "null_blk";
/// Where modules are in the guest.
const MODULE_FOLDER: &str = "/usr/lib/modules";
/// Where the guest's daemon is.
pub const VMDTRACE: &str = "/usr/bin/vmdtrace";

/// Everything that a guest is made of and that does not change between boots.
#[derive(Clone, Debug)]
pub struct Artifacts {
    pub qemu: Qemu,
    pub kernel: Kernel,
    pub programs: GuestPrograms,
    /// The static program that is PID 1 of the guest (package `lab-agent`).
    pub agent: PathBuf,
    /// The static daemon; it is put in the guest as [`VMDTRACE`].
    pub vmdtrace: Option<PathBuf>,
    /// For guests that run systemd ([`crate::Root::Debian`]).
    pub debian: Option<DebianRoot>,
    /// The program that serves an emulated device when called as
    /// `PROGRAM device ARGUMENTS`.
    pub device_server: PathBuf,
    /// Folder for finished initramfs archives.
    pub cache: PathBuf,
}

/// The path of a module in the guest.
pub(crate) fn module_path(name: &str) -> String {
    format!("{MODULE_FOLDER}/{name}.ko")
}

impl Artifacts {
    /// Gets and builds all parts but the two programs that are given: the daemon,
    /// and the device server (see the fields).
    ///
    /// # Errors
    /// When a part cannot be had.
    pub fn prepare(
        setup: &Setup,
        series: &str,
        vmdtrace: Option<PathBuf>,
        device_server: PathBuf,
    ) -> Result<Self> {
        Ok(Self {
            qemu: setup.qemu()?,
            kernel: setup.kernel(series)?,
            programs: setup.guest_programs()?,
            agent: setup.static_binary("lab-agent", "lab-agent", Profile::Release)?,
            vmdtrace,
            debian: None,
            device_server,
            cache: setup.cache().path("initramfs"),
        })
    }

    pub(crate) fn modules(&self, names: &[String]) -> Result<Vec<Module>> {
        Modules::open(&self.kernel.modules)?.resolve(names)
    }

    /// A module's file, decompressed.
    pub(crate) fn module(&self, name: &str) -> Result<Vec<u8>> {
        let found = self.modules(&[name.to_owned()])?;
        let found = found.into_iter().find(|module| module.name == name);
        found
            .map(|module| module.content)
            .ok_or_else(|| LabError::Invalid(format!("{name} is built into the kernel")))
    }

    /// The part of the initramfs that is the same for every boot of this kernel.
    pub(crate) fn base(&self) -> Result<Archive> {
        let mut archive = Archive::default();
        archive.console();
        archive.file("/bin/busybox", 0o755, &self.programs.busybox);
        let fio = &self.programs.fio;
        archive.file("/bin/fio", 0o755, &fio.path);
        for (on_host, in_guest) in &fio.loader_and_libraries {
            archive.file(in_guest, 0o755, on_host);
        }
        self.add_modules(&mut archive)?;
        Ok(archive)
    }

    /// As [`Artifacts::base`], of a guest that runs systemd.
    pub(crate) fn debian_base(&self) -> Result<Archive> {
        let root = self.debian.as_ref().ok_or_else(|| {
            LabError::Invalid("a guest with systemd needs Debian's packages".to_owned())
        })?;
        let mut archive = systemd::root(root)?;
        self.add_modules(&mut archive)?;
        Ok(archive)
    }

    /// The modules of these names that not every guest has, with what they need.
    pub(crate) fn add_modules_beyond_base(
        &self,
        names: &[String],
        archive: &mut Archive,
    ) -> Result<()> {
        let others: Vec<String> = names
            .iter()
            .filter(|name| !MODULES.contains(&name.as_str()))
            .cloned()
            .collect();
        for module in self.modules(&others)? {
            archive.bytes(&module_path(&module.name), 0o644, module.content);
        }
        Ok(())
    }

    /// The modules that every guest has, and the list of those for the channel.
    fn add_modules(&self, archive: &mut Archive) -> Result<()> {
        let modules = Modules::open(&self.kernel.modules)?;
        let at_boot = modules.resolve(&CHANNEL_MODULES.map(str::to_owned))?;
        let order: String = at_boot
            .iter()
            .map(|it| module_path(&it.name) + "\n")
            .collect();
        archive.bytes(lab_agent::BOOT_MODULES, 0o644, order);
        for module in at_boot
            .into_iter()
            .chain(modules.resolve(&MODULES.map(str::to_owned))?)
        {
            archive.bytes(&module_path(&module.name), 0o644, module.content);
        }
        Ok(())
    }
}
