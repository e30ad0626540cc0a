//! Makes a cause in a booted server and has it diagnosed, live and from a
//! recording of the same time.

use std::path::PathBuf;
use std::time::Duration;

use super::answer::row_name;
use super::driver;
use super::{Action, Answer, Found, InjectedLoad, Injection, Server, Window};
use crate::artifacts::{Artifacts, VMDTRACE, module_path};
use crate::command::GuestCommand;
use crate::disks::GuestDisk;
use crate::error::{LabError, Result};
use crate::fio::{Bound, Load};
use crate::guest::{Guest, GuestFile};
use crate::interrupt;
use crate::temporary::Folder;

const VMD: &str = "vmd";
/// What is looked at: short, and long enough for the kernel's ticks.
const SECONDS: u64 = 5;
/// For what takes seconds on an idle host.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longer than anything here takes.
const LOAD: Duration = Duration::from_secs(600);

/// A booted server for injections. Dropping it ends the guest.
#[derive(Debug)]
pub struct Site<'a> {
    artifacts: &'a Artifacts,
    guest: Guest,
    disks: Vec<GuestDisk>,
    /// Recordings.
    folder: Folder,
}

/// What was said of an injection.
#[derive(Debug)]
pub struct Observed {
    pub injection: &'static Injection,
    pub windows: Vec<Seen>,
    /// Of the last two windows.
    pub compared: Option<Found>,
    /// The recordings, by window; they go with the [`Site`].
    pub recordings: Vec<PathBuf>,
}

/// What was said of one window.
#[derive(Debug)]
pub struct Seen {
    /// By `vmdtrace diagnose` in the guest.
    pub live: Found,
    /// By the same program on the host, of a recording.
    pub recorded: Found,
}

impl<'a> Site<'a> {
    /// Boots; the artifacts' kernel has to be the server's.
    ///
    /// # Errors
    /// When the guest does not come up.
    pub fn boot(artifacts: &'a Artifacts, server: Server) -> Result<Self> {
        let folder = Folder::new("recordings")?;
        let mut config = server.config();
        if server.has_faulty_driver() {
            let driver = artifacts.module(VMD)?;
            let file = folder.path().join("vmd.ko");
            std::fs::write(&file, driver::that_never_enables(&driver)?)
                .map_err(LabError::path(&file))?;
            config.files.push(GuestFile {
                on_host: file,
                in_guest: module_path(VMD),
                mode: 0o644,
            });
        }
        let guest = Guest::boot(artifacts, &config)?;
        for (module, parameters) in server.modules() {
            guest.load_module(module, parameters)?;
        }
        let disks = guest.await_disks(PATIENCE)?;
        Ok(Self {
            artifacts,
            guest,
            disks,
            folder,
        })
    }

    /// Runs all windows of an injection.
    ///
    /// # Errors
    /// When a step fails. That the answer is right is for the caller to judge.
    pub fn observe(&self, injection: &'static Injection) -> Result<Observed> {
        let mut observed = Observed {
            injection,
            windows: Vec::new(),
            compared: None,
            recordings: Vec::new(),
        };
        for (index, window) in injection.windows.iter().enumerate() {
            let name = format!("{}-{}.vmdtrace", injection.name, index + 1);
            let (seen, recording) = self
                .window(window, &name)
                .map_err(|error| error.about(&row_name(injection, Some(index))))?;
            observed.windows.push(seen);
            observed.recordings.push(recording);
        }
        if injection.compared.is_some()
            && let [.., one, other] = &observed.recordings[..]
        {
            let json = self
                .artifacts
                .vmdtrace_says(&["compare", "--output", "json"], &[one, other])?;
            observed.compared = Some(Found::parse(&json)?);
        }
        Ok(observed)
    }

    /// Switches the guest off.
    ///
    /// # Errors
    /// When it does not end in order.
    pub fn end(self) -> Result<()> {
        self.guest.power_off()
    }

    fn window(&self, window: &Window, name: &str) -> Result<(Seen, PathBuf)> {
        let load = self.load(&window.load)?;
        self.act(window.before, &load)?;
        let taken = self.taken(window.load.tag)?;
        let fio = self.guest.spawn(&load.command_by(window.load.engine))?;
        interrupt::until("waiting for the load to begin", PATIENCE, || {
            fio.check_running()?;
            let now = self.taken(window.load.tag)?;
            // Not all: one may be told to take nothing.
            let has_begun = now.iter().zip(&taken).any(|(now, before)| now > before);
            Ok(has_begun.then_some(()))
        })?;

        let in_guest = format!("/tmp/{name}");
        let time = format!("{SECONDS}s");
        let record = GuestCommand::new(VMDTRACE).args(["record", "-o", &in_guest, "--for", &time]);
        let diagnose =
            GuestCommand::new(VMDTRACE).args(["diagnose", "--for", &time, "--output", "json"]);
        // Both at once: they are to see the same.
        let recording = self.guest.spawn(&record)?;
        let live = self.guest.check(&diagnose, PATIENCE)?;
        let recorded = recording.wait(PATIENCE)?;
        if !recorded.success() {
            return Err(recorded.error(&record, &format!("failed ({})", recorded.exit)));
        }
        self.act(window.after, &load)?;
        fio.stop(PATIENCE)?;

        let content = self.guest.read_file(&in_guest)?;
        let file = self.folder.path().join(name);
        std::fs::write(&file, content).map_err(LabError::path(&file))?;
        let json = self
            .artifacts
            .vmdtrace_says(&["diagnose", "--output", "json", "--from"], &[&file])?;
        let seen = Seen {
            live: Found::parse(&live.stdout_text())?,
            recorded: Found::parse(&json)?,
        };
        Ok((seen, file))
    }

    fn load(&self, load: &InjectedLoad) -> Result<Load> {
        let of_controller = format!("VMDLAB{}", load.tag);
        let disks = self.disks.iter();
        let disks = disks.filter(|disk| disk.serial.starts_with(&of_controller));
        Ok(Load {
            disks: disks
                .filter_map(|disk| disk.namespaces.first().cloned())
                .take(load.disks)
                .collect(),
            cpus: load.cpus.parse().map_err(LabError::Invalid)?,
            depth: load.depth,
            bound: Bound::Time(LOAD),
        })
    }

    fn act(&self, actions: &[Action], load: &Load) -> Result<()> {
        for action in actions {
            match action {
                Action::Shell(script) => {
                    let command = GuestCommand::shell(*script).env("disks", load.disks.join(" "));
                    self.guest.check(&command, PATIENCE)?;
                }
                Action::Device(tag, requests) => {
                    let mut client = self.controller(tag)?.client()?;
                    for request in requests() {
                        client.ask(&request).map_err(|error| {
                            LabError::failed(format!("asking controller {tag}: {error}"))
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    fn controller(&self, tag: &str) -> Result<&crate::controller::Controller> {
        let mut controllers = self.guest.controllers().iter();
        controllers
            .find(|it| it.config().tag == tag)
            .ok_or_else(|| LabError::Invalid(format!("the server has no controller {tag}")))
    }

    /// Reads that each disk of a controller took.
    fn taken(&self, tag: &str) -> Result<Vec<u64>> {
        let counters = self.controller(tag)?.counters()?;
        let disks = counters.disks.iter();
        Ok(disks
            .map(|disk| disk.queues.iter().map(|queue| queue.reads).sum())
            .collect())
    }
}

impl Observed {
    /// What was said, and where it is not what had to be said: a line or more for
    /// each view.
    #[must_use]
    pub fn views(&self) -> Vec<View<'_>> {
        let mut views = Vec::new();
        for (index, (seen, window)) in self.windows.iter().zip(self.injection.windows).enumerate() {
            for (by, found) in [("live", &seen.live), ("recording", &seen.recorded)] {
                views.push(View {
                    row: row_name(self.injection, Some(index)),
                    by,
                    found,
                    answer: window.answer,
                    wrong: found.differences(&window.answer),
                });
            }
        }
        if let Some((found, answer)) = self.compared.as_ref().zip(self.injection.compared) {
            views.push(View {
                row: row_name(self.injection, None),
                by: "recordings",
                found,
                answer,
                wrong: found.differences(&answer),
            });
        }
        views
    }
}

/// One diagnosis of a window, or of two.
#[derive(Debug)]
pub struct View<'a> {
    pub row: String,
    /// By what it was made.
    pub by: &'static str,
    pub found: &'a Found,
    pub answer: Answer,
    /// In which way it is wrong.
    pub wrong: Vec<String>,
}
