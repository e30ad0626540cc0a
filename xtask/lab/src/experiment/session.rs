//! One boot: a guest with the daemon in it, scraped by Prometheus.

use std::path::Path;
use std::time::Duration;

use vmd_device::{Config, Service};

use super::Mode;
use super::readings::Readings;
use super::run::{COMPLETIONS, Facts, OUTSIDE, Run, Stored};
use crate::artifacts::{Artifacts, VMDTRACE};
use crate::command::{Background, GuestCommand};
use crate::controller::Controller;
use crate::disks::GuestDisk;
use crate::error::{LabError, Result};
use crate::fio::{Bound, CpuList, Done, Load};
use crate::guest::{Guest, GuestConfig};
use crate::interrupt;
use crate::prometheus::{Prometheus, Target, unix_seconds};

/// The label that tells the targets of Prometheus apart.
const LABEL: &str = "lab";
/// The daemon's port in the guest.
const PORT: u16 = 10973;
/// Reads in flight on each disk.
const DEPTH: u32 = 16;
/// Where a load's recording is in the guest.
const RECORDING: &str = "/tmp/load.vmdtrace";
/// For what takes seconds on an idle host.
const PATIENCE: Duration = Duration::from_secs(120);

/// The machine to measure on.
#[derive(Clone, Debug)]
pub struct Setting {
    pub mode: Mode,
    pub cpus: u32,
    pub disks: u8,
    /// MSI-X vectors of the VMD.
    pub vectors: u16,
    /// How fast each disk is.
    pub service: Service,
    /// Whether the daemon exports vectors and disks by themselves, too.
    pub detailed: bool,
    /// Keep the guest's logs should something fail.
    pub keep_logs: bool,
}

/// A booted guest whose daemon is scraped. Dropping it ends the guest.
#[derive(Debug)]
pub struct Session<'a> {
    prometheus: &'a Prometheus,
    artifacts: &'a Artifacts,
    setting: Setting,
    guest: Guest,
    daemon: Background,
    disks: Vec<GuestDisk>,
}

impl<'a> Session<'a> {
    /// Boots, starts the daemon before any load, and has Prometheus scrape it.
    ///
    /// # Errors
    /// When a step fails or takes too long.
    pub fn start(
        artifacts: &'a Artifacts,
        prometheus: &'a Prometheus,
        setting: Setting,
    ) -> Result<Self> {
        let controller = Config {
            id: setting.mode.device_id(),
            disks: setting.disks,
            vectors: setting.vectors,
            service: setting.service,
            ..Config::default()
        };
        let config = GuestConfig {
            cpus: setting.cpus,
            controllers: vec![controller],
            guest_port: PORT,
            keep_logs: setting.keep_logs,
            ..GuestConfig::default()
        };
        let guest = Guest::boot(artifacts, &config)?;
        let disks = guest.await_disks(PATIENCE)?;
        require_mode(&guest, setting.mode)?;
        let listen = format!("0.0.0.0:{PORT}");
        let mut arguments = vec!["serve", "--web.listen-address", listen.as_str()];
        if setting.detailed {
            arguments.extend(["--metrics.vectors", "--metrics.disks", "--metrics.cpus"]);
        }
        let command = GuestCommand::new(VMDTRACE).args(arguments);
        let daemon = guest.spawn(&command)?;
        interrupt::until("waiting for the daemon to be ready", PATIENCE, || {
            daemon.check_running()?;
            Ok(guest
                .http_get("/readyz")
                .is_ok_and(|it| it.status == 200)
                .then_some(()))
        })?;
        prometheus.watch(&[Target::new(guest.address(), LABEL, setting.mode.name())])?;
        Ok(Self {
            prometheus,
            artifacts,
            setting,
            guest,
            daemon,
            disks,
        })
    }

    /// The guest, for whatever else is to be done with it.
    #[must_use]
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The guest's disks, in the order of their serial numbers.
    #[must_use]
    pub fn disks(&self) -> &[GuestDisk] {
        &self.disks
    }

    #[must_use]
    pub fn setting(&self) -> &Setting {
        &self.setting
    }

    /// The two loads of the experiment: one disk from the first of these CPUs,
    /// and all disks from all of them.
    #[must_use]
    pub fn loads(&self, cpus: &CpuList, time: Duration) -> [Load; 2] {
        let devices: Vec<_> = self
            .disks
            .iter()
            .filter_map(|it| it.namespaces.first())
            .collect();
        let load = |count: usize, cpus: CpuList| Load {
            disks: devices.iter().take(count).copied().cloned().collect(),
            cpus,
            depth: DEPTH,
            bound: Bound::Time(time),
        };
        [
            load(1, cpus.only_first()),
            load(devices.len(), cpus.clone()),
        ]
    }

    /// Waits until nothing counts any more and reads all counters.
    ///
    /// # Errors
    /// When the guest does not come to rest, or a source does not answer.
    pub fn at_rest(&self) -> Result<Readings> {
        let mut last = None;
        interrupt::until("waiting for the guest to be at rest", PATIENCE, || {
            let now = (self.device()?, self.nvme_counts()?);
            let resting = last.as_ref() == Some(&now);
            last = Some(now);
            Ok(resting.then_some(()))
        })?;
        Ok(Readings {
            daemon: self.guest.scrape()?,
            kernel: self.guest.kernel_counts()?,
            device: self.device()?,
        })
    }

    /// Runs one load and puts the figures of all sources together. `vmdtrace record`
    /// counts it, too, beside the daemon: what it wrote is put into a file of this
    /// machine.
    ///
    /// # Errors
    /// When fio or the daemon fails, a source does not answer, or a counter goes
    /// back. That counts agree is for the caller to judge.
    pub fn measure(&self, load: &Load, recording: &Path) -> Result<Run> {
        let before = self.at_rest()?;
        let first = self.await_scrape(unix_seconds()?)?;
        let limit = PATIENCE
            + if let Bound::Time(time) = load.bound {
                time
            } else {
                PATIENCE
            };
        let record = GuestCommand::new(VMDTRACE)
            .args(["record", "--force", "-o", RECORDING, "--"])
            .running(&load.command());
        let output = self.guest.check(&record, limit)?;
        let content = self.guest.read_file(RECORDING)?;
        std::fs::write(recording, content).map_err(LabError::path(recording))?;
        let fio = Done::parse(&output.stdout_text(), load)?;
        self.daemon.check_running()?;
        let after = self.at_rest()?;
        let last = self.await_scrape(unix_seconds()?)?;
        let label = self.setting.mode.name();
        let metrics = format!(r#"{{__name__=~"{COMPLETIONS}|{OUTSIDE}",{LABEL}="{label}"}}"#);
        let stored = Stored {
            up: self.prometheus.raw(&self.up(), first, last)?,
            completions: self.prometheus.raw(&metrics, first, last)?,
        };
        Run::new(&self.facts(load), &before, &after, &fio, &stored)
    }

    /// Stops the daemon and switches the guest off.
    ///
    /// # Errors
    /// When one of them does not end in order.
    pub fn end(self) -> Result<()> {
        self.prometheus.watch(&[])?;
        let output = self.daemon.stop(PATIENCE)?;
        if !output.success() {
            return Err(LabError::failed(format!(
                "the daemon ended with {}:\n{}",
                output.exit,
                output.stderr_text().trim()
            )));
        }
        self.guest.power_off()
    }

    fn facts(&self, load: &Load) -> Facts {
        let place = |disk: &GuestDisk| {
            let device = disk.namespaces.first();
            load.disks.iter().position(|name| Some(name) == device)
        };
        Facts {
            mode: self.setting.mode,
            kernel: self.artifacts.kernel.package_version.clone(),
            kernel_release: self.guest.kernel_release().to_owned(),
            qemu: self.artifacts.qemu.version.clone(),
            disks: self.setting.disks,
            cpus: self.setting.cpus,
            vectors: self.setting.vectors,
            latency: self.setting.service.latency,
            fio_cpus: load.cpus.clone(),
            fio_depth: load.depth,
            guest_disks: self
                .disks
                .iter()
                .map(|disk| (disk.clone(), place(disk)))
                .collect(),
        }
    }

    fn device(&self) -> Result<vmd_device::Counters> {
        let controllers = self.guest.controllers();
        let counters = controllers.first().map(Controller::counters);
        counters.unwrap_or_else(|| Err(LabError::failed("the guest has no controller")))
    }

    /// The kernel's counts without those of the channel that asks for them.
    fn nvme_counts(&self) -> Result<crate::interrupts::KernelCounts> {
        let mut counts = self.guest.kernel_counts()?;
        counts.lines.retain(|_, line| {
            let action = &line.actions;
            crate::is_vmd_action(action) || crate::disk_of_action(action).is_some()
        });
        Ok(counts)
    }

    fn up(&self) -> String {
        format!(r#"up{{{LABEL}="{}"}}"#, self.setting.mode.name())
    }

    /// Waits for a scrape that began at this time or later and has been stored;
    /// returns when it began.
    fn await_scrape(&self, since: f64) -> Result<f64> {
        let up = self.up();
        interrupt::until("waiting for a scrape by Prometheus", PATIENCE, || {
            let series = self.prometheus.raw(&up, since, unix_seconds()?)?;
            let good = series
                .iter()
                .flat_map(|it| &it.samples)
                .find(|(_, up)| *up == 1.0);
            Ok(good.map(|(at, _)| *at))
        })
    }
}

/// An error if the guest's driver runs the controller in another mode. The
/// drivers of kernels before 5.13 remap always.
fn require_mode(guest: &Guest, wanted: Mode) -> Result<()> {
    let wanted_of_device = match wanted {
        Mode::Remap => vmd_device::Mode::Remap,
        Mode::Bypass => vmd_device::Mode::Bypass,
    };
    for controller in guest.controllers() {
        if controller.counters()?.mode != wanted_of_device {
            return Err(LabError::Invalid(format!(
                "the vmd driver of kernel {} does not run controller {} in {} mode: choose a \
                 kernel of 5.13 or later",
                guest.kernel_release(),
                controller.config().id.name(),
                wanted.name()
            )));
        }
    }
    Ok(())
}
