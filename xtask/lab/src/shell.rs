//! An interactive shell in a guest.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

use crate::command::GuestCommand;
use crate::error::{LabError, Result};
use crate::guest::Guest;
use crate::terminal::{self, Left};

/// A person may take his time.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl Guest {
    /// Connects this process's standard streams to a shell in the guest, until
    /// that ends or the person leaves by Ctrl-A X. The guest must have been booted
    /// with a terminal ([`crate::GuestConfig::terminal`]).
    ///
    /// # Errors
    /// When the guest has no terminal, the shell cannot be started, or one of the
    /// streams fails.
    pub fn shell(&self) -> Result<Left> {
        let socket = self
            .terminal()
            .ok_or_else(|| LabError::Invalid("the guest has no terminal".to_owned()))?;
        let console = UnixStream::connect(socket).map_err(LabError::path(socket))?;
        let size = terminal::size().map_or_else(String::new, |(rows, columns)| {
            format!("stty rows {rows} columns {columns};")
        });
        // `setsid` forks, and does not wait, if it leads a process group: so it must
        // not be the last command, which `sh` would become itself. In the background
        // Ctrl-C would be ignored.
        let script = format!(
            "exec </dev/hvc0 >/dev/hvc0 2>&1; {size} mkdir -p /root; cd /root;
             setsid -c sh -i; exit $?"
        );
        let term = std::env::var("TERM").unwrap_or_else(|_| "dumb".to_owned());
        let command = GuestCommand::shell(script)
            .env("TERM", term)
            .env("HOME", "/root")
            .env("PS1", "guest \\w # ");
        let shell = self.spawn(&command)?;
        let (sender, end) = channel();
        std::thread::Builder::new()
            // Nobody listens if the person has left: it then ends with the guest.
            .spawn(move || drop(sender.send(shell.wait(FOREVER))))
            .map_err(LabError::io("cannot start a thread"))?;
        terminal::connect(console, || match end.try_recv() {
            Ok(result) => result.map(|_| true),
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Ok(true),
        })
    }
}
