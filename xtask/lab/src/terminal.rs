//! A person's terminal, connected to a console of the guest.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{self, OptionalActions, Termios};

use crate::error::{LabError, Result};
use crate::interrupt;

/// How often the connection looks whether the guest's side has ended.
const TURN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// End of transmission: what Ctrl-D sends.
const END_OF_INPUT: u8 = 0x04;

/// Who ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The person, by Ctrl-A X.
    Escape,
    /// The guest's side.
    Guest,
}

/// Copies between this process's standard streams and the guest's console until
/// `ended` says that the guest's side is done. A terminal is in raw mode
/// meanwhile, so that Ctrl-C and all else reach the guest.
pub(crate) fn connect(
    mut console: UnixStream,
    mut ended: impl FnMut() -> Result<bool>,
) -> Result<Left> {
    let failed = || LabError::io("the terminal");
    let input = io::stdin();
    let _raw = Raw::set(input.as_fd())?;
    let mut escape = Escape::default();
    let mut open = true;
    loop {
        interrupt::check()?;
        if ended()? {
            // What was written last may still be on its way.
            copy_rest(&mut console).map_err(failed())?;
            return Ok(Left::Guest);
        }
        let (from_person, from_guest) =
            readable(open.then(|| input.as_fd()), console.as_fd()).map_err(failed())?;
        if from_person {
            // Not by `Stdin`, whose buffer poll does not see.
            let mut bytes = [0; 1024];
            let count =
                rustix::io::read(&input, &mut bytes).map_err(|errno| failed()(errno.into()))?;
            let (sent, left) = escape.take(&bytes[..count]);
            console.write_all(&sent).map_err(failed())?;
            if left {
                return Ok(Left::Escape);
            }
            if count == 0 {
                open = false;
                console.write_all(&[END_OF_INPUT]).map_err(failed())?;
            }
        }
        if from_guest && !copy(&mut console).map_err(failed())? {
            return Ok(Left::Guest);
        }
    }
}

/// Rows and columns of the terminal; none if standard input is no terminal.
pub(crate) fn size() -> Option<(u16, u16)> {
    let size = termios::tcgetwinsize(io::stdin()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// Waits a moment; which of the two have something to read.
fn readable(input: Option<BorrowedFd<'_>>, console: BorrowedFd<'_>) -> io::Result<(bool, bool)> {
    let mut waiting = vec![PollFd::from_borrowed_fd(console, PollFlags::IN)];
    waiting.extend(input.map(|input| PollFd::from_borrowed_fd(input, PollFlags::IN)));
    match poll(&mut waiting, Some(&TURN)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let any = |index: usize| {
        waiting
            .get(index)
            .is_some_and(|it| !it.revents().is_empty())
    };
    Ok((any(1), any(0)))
}

/// Copies what the guest wrote; false at its end.
fn copy(console: &mut UnixStream) -> io::Result<bool> {
    let mut bytes = [0; 4096];
    let count = console.read(&mut bytes)?;
    let mut output = io::stdout().lock();
    output.write_all(&bytes[..count])?;
    output.flush()?;
    Ok(count > 0)
}

fn copy_rest(console: &mut UnixStream) -> io::Result<()> {
    while readable(None, console.as_fd())?.1 {
        if !copy(console)? {
            break;
        }
    }
    Ok(())
}

/// The terminal's mode, restored when dropped.
struct Raw<'a> {
    terminal: Option<(BorrowedFd<'a>, Termios)>,
}

impl<'a> Raw<'a> {
    /// Does nothing if it is no terminal.
    fn set(input: BorrowedFd<'a>) -> Result<Self> {
        let Ok(before) = termios::tcgetattr(input) else {
            return Ok(Self { terminal: None });
        };
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(input, OptionalActions::Now, &raw)
            .map_err(|errno| LabError::io("the terminal's mode")(errno.into()))?;
        Ok(Self {
            terminal: Some((input, before)),
        })
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        if let Some((input, before)) = &self.terminal {
            // Fails only if the terminal is gone.
            let _ = termios::tcsetattr(input, OptionalActions::Now, before);
        }
    }
}

/// Finds Ctrl-A X, as in QEMU's own console: Ctrl-A twice sends one.
#[derive(Default)]
struct Escape {
    begun: bool,
}

impl Escape {
    const BEGIN: u8 = 0x01;

    /// What is to be sent, and whether the person leaves.
    fn take(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut sent = Vec::new();
        for byte in bytes {
            match (std::mem::take(&mut self.begun), *byte) {
                (true, b'x' | b'X') => return (sent, true),
                (false, Self::BEGIN) => self.begun = true,
                (true, Self::BEGIN) | (false, _) => sent.push(*byte),
                (true, _) => sent.extend([Self::BEGIN, *byte]),
            }
        }
        (sent, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_is_found_across_reads_and_nothing_else_is_lost() {
        let take = |parts: &[&str]| {
            let mut escape = Escape::default();
            let mut all = Vec::new();
            for part in parts {
                let (sent, left) = escape.take(part.as_bytes());
                all.extend(sent);
                if left {
                    return (String::from_utf8(all).unwrap(), true);
                }
            }
            (String::from_utf8(all).unwrap(), false)
        };
        assert_eq!(take(&["ls\r\u{1}", "xls"]), ("ls\r".into(), true));
        assert_eq!(take(&["\u{1}X"]), (String::new(), true));
        assert_eq!(take(&["\u{1}\u{1}x"]), ("\u{1}x".into(), false));
        assert_eq!(take(&["a\u{1}b\u{3}x"]), ("a\u{1}b\u{3}x".into(), false));
    }
}
