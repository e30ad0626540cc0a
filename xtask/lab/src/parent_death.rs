//! The one unsafe corner of the lab: what a child does between fork and exec.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

/// The program will be killed when this process ends, however that comes.
pub(crate) fn kill_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let in_child = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have ended before the line above.
        if getppid() == parent {
            Ok(())
        } else {
            Err(nix::errno::Errno::ESRCH.into())
        }
    };
    // SAFETY: the closure runs in the forked child, where only calls that are
    // safe in a signal handler may be made: it makes two system calls, allocates
    // nothing and takes no lock.
    unsafe { command.pre_exec(in_child) };
}
