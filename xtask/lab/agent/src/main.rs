//! PID 1 of the virtual server. It sets the machine up, starts itself once
//! more as the server of the command channel, and reaps what is left behind.
//! The split keeps the reaper from taking the exit status of a program that
//! the server waits for.

mod bpf;
mod jobs;
mod machine;
mod nvme;
mod server;

use std::process::{Command, ExitCode};

use nix::sys::wait::wait;
use nix::unistd::Pid;

const SERVE: &str = "serve";
/// As a service under another PID 1, which switches the machine off when the
/// service ends well.
const SERVICE: &str = "service";

fn main() -> ExitCode {
    let mode = std::env::args().nth(1);
    if mode.as_deref() == Some(SERVICE) {
        machine::load_boot_modules();
    }
    if matches!(mode.as_deref(), Some(SERVE | SERVICE)) {
        return match server::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("lab-agent: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if std::process::id() != 1 {
        eprintln!("lab-agent: this is the first process of a virtual server, not a command");
        return ExitCode::FAILURE;
    }
    machine::set_up();
    match Command::new("/proc/self/exe").arg(SERVE).spawn() {
        Ok(server) => reap_until_end_of(Pid::from_raw(server.id() as i32)),
        Err(error) => eprintln!("lab-agent: cannot start the server: {error}"),
    }
    machine::power_off()
}

/// Reaps every orphan until the server itself ends.
fn reap_until_end_of(server: Pid) {
    loop {
        match wait() {
            Ok(status) if status.pid() == Some(server) => {
                eprintln!("lab-agent: the server ended: {status:?}");
                return;
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => {
                eprintln!("lab-agent: cannot wait for processes: {error}");
                return;
            }
        }
    }
}
