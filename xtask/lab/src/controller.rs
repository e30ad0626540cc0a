//! The emulated VMD controllers of a guest, each a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vmd_device::control::Client;
use vmd_device::{Args, Config, Counters};

use crate::child::Guarded;
use crate::error::{LabError, Log, Result};
use crate::interrupt;

/// A running emulated controller.
#[derive(Debug)]
pub struct Controller {
    server: Guarded,
    args: Args,
}

impl Controller {
    /// Starts a server and waits until it listens.
    pub(crate) fn start(
        program: &Path,
        index: usize,
        config: &Config,
        folder: &Path,
    ) -> Result<Self> {
        let name = format!("VMD device {index}");
        let file = |suffix: &str| folder.join(format!("device-{index}.{suffix}"));
        let args = Args {
            socket: file("socket"),
            control: file("control"),
            config: config.clone(),
            verbose: false,
        };
        let mut command = Command::new(program);
        command.arg("device").args(args.command_line());
        let mut server = Guarded::spawn(&name, command, &file("log"))?;
        let what = format!("waiting for {name} to listen");
        interrupt::until(&what, Duration::from_secs(30), || {
            server.check()?;
            Ok((args.socket.exists() && args.control.exists()).then_some(()))
        })
        .map_err(|error| error.with_logs(&[server.log()]))?;
        Ok(Self { server, args })
    }

    /// What the device counted so far, to the last unit.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn counters(&self) -> Result<Counters> {
        self.client()?
            .counters()
            .map_err(|error| self.failed(&error))
    }

    /// A connection for whatever else the server can be asked.
    ///
    /// # Errors
    /// When the server does not listen any more.
    pub fn client(&self) -> Result<Client> {
        Client::connect(&self.args.control).map_err(|error| self.failed(&error))
    }

    /// Memory of the server's own, in KiB: without the guest's memory, which it maps.
    ///
    /// # Errors
    /// When the server has ended.
    pub fn anonymous_kib(&self) -> Result<u64> {
        let path = PathBuf::from(format!("/proc/{}/status", self.server.id()));
        let status = std::fs::read_to_string(&path).map_err(LabError::path(&path))?;
        anonymous_kib(&status)
            .ok_or_else(|| LabError::Invalid(format!("{} has no RssAnon", path.display())))
    }

    /// What it was started with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.args.config
    }

    pub(crate) fn socket(&self) -> &PathBuf {
        &self.args.socket
    }

    pub(crate) fn log(&self) -> Log {
        self.server.log()
    }

    /// Waits for the server's end, which follows that of its guest.
    pub(crate) fn await_end(&mut self, limit: Duration) -> Result<()> {
        let log = self.log();
        let status = self.server.await_end(limit)?;
        if status.success() {
            return Ok(());
        }
        Err(LabError::failed(format!("{} ended with {status}", log.of)).with_logs(&[log]))
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> LabError {
        let log = self.log();
        LabError::failed(format!("asking {}: {error}", log.of)).with_logs(&[log])
    }
}

fn anonymous_kib(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_of_its_own_counts() {
        let status = "Name:\tx\nVmRSS:\t  9000 kB\nRssAnon:\t     812 kB\nRssShmem:\t 7000 kB\n";
        assert_eq!(anonymous_kib(status), Some(812));
        assert_eq!(anonymous_kib("Name:\tx\n"), None);
    }
}
