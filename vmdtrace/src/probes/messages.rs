//! The programs' rare messages (aya-log), passed on to this process's log by a
//! thread that sleeps until there is one.

use std::{io, os::fd::AsFd as _, thread};

use aya_log::EbpfLogger;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

/// Passes messages on for as long as the process lives.
///
/// # Errors
/// If the thread cannot be started.
pub fn pass_on(mut logger: EbpfLogger<&'static dyn log::Log>) -> io::Result<()> {
    thread::Builder::new()
        .name("ebpf-messages".to_owned())
        .spawn(move || {
            loop {
                let mut waiting = [PollFd::new(logger.as_fd(), PollFlags::POLLIN)];
                let outcome = poll(&mut waiting, PollTimeout::NONE);
                let [waiting] = waiting;
                let readable = waiting
                    .revents()
                    .is_some_and(|it| it.contains(PollFlags::POLLIN));
                match outcome {
                    Ok(_) if readable => logger.flush(),
                    Err(Errno::EINTR) => {}
                    outcome => {
                        tracing::warn!(
                            "messages of the eBPF programs are lost from now on: {outcome:?}"
                        );
                        return;
                    }
                }
            }
        })?;
    Ok(())
}
