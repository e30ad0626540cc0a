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
                let ready = poll(
                    &mut [PollFd::new(logger.as_fd(), PollFlags::POLLIN)],
                    PollTimeout::NONE,
                );
                match ready {
                    Ok(_) => logger.flush(),
                    Err(Errno::EINTR) => {}
                    Err(error) => {
                        tracing::warn!(
                            "messages of the eBPF programs are lost from now on: {error}"
                        );
                        return;
                    }
                }
            }
        })?;
    Ok(())
}
