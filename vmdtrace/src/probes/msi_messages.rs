//! The programs' messages about operations on interrupts, as log lines. The
//! programs let so many of an operation through in a period; what they left out
//! is told as a number. A thread sleeps until there is a message.

use std::{
    io::{self, ErrorKind},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    thread,
};

use aya::maps::{MapData, RingBuf};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use vmdtrace_common::msi::{MsiTotals, Operation, PERIOD_NS};

use super::{
    mapped::MappedArray,
    msi::{ControllerName, Told},
};

/// What a message is about, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// PCI address of the VMD.
    pub controller: Option<String>,
    /// Name of the interrupt's action.
    pub action: Option<String>,
    /// Number of the controller's vector that the interrupt is delivered through.
    pub vector: Option<u32>,
}

/// Where messages come from.
pub trait Stream: AsFd {
    /// Hands each message that is there to `take`, and says whether there was one.
    /// Does not wait.
    ///
    /// # Errors
    /// If there will be no more.
    fn drain(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<bool>;
}

/// The programs' own ring.
pub struct Ring(pub RingBuf<MapData>);

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Ring").finish_non_exhaustive()
    }
}

impl Stream for Ring {
    fn drain(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        let mut any = false;
        while let Some(bytes) = self.0.next() {
            any = true;
            take(&bytes);
        }
        Ok(any)
    }
}

/// What it takes to tell messages.
#[derive(Debug)]
pub struct Messages<S> {
    pub stream: S,
    pub totals: Arc<MappedArray<MsiTotals>>,
}

impl<S: Stream + Send + 'static> Messages<S> {
    /// Writes messages to the log until there will be no more; then tells `ended` why.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn pass_on(
        self,
        subject: impl Fn(&ControllerName, Option<u32>) -> Subject + Send + 'static,
        ended: impl FnOnce(io::Error) + Send + 'static,
    ) -> io::Result<()> {
        thread::Builder::new()
            .name("msi-messages".to_owned())
            .spawn(move || ended(self.run(subject)))?;
        Ok(())
    }

    fn run(mut self, subject: impl Fn(&ControllerName, Option<u32>) -> Subject) -> io::Error {
        let period = u16::try_from(PERIOD_NS / 1_000_000).unwrap_or(u16::MAX);
        let mut left_out = LeftOut::default();
        loop {
            let limit = if left_out.may_grow {
                PollTimeout::from(period)
            } else {
                PollTimeout::NONE
            };
            let mut waiting = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waiting, limit) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return error.into(),
            }
            let drained = self.stream.drain(&mut |bytes| {
                if let Some(told) = Told::parse(bytes) {
                    let subject = subject(&told.controller, told.irq);
                    tracing::info!("{}", line(&told, &subject));
                }
            });
            let any = match drained {
                Ok(any) => any,
                Err(error) if error.kind() == ErrorKind::Interrupted => false,
                Err(error) => return error,
            };
            let totals = self.totals.get(0).unwrap_or_default();
            for (operation, count) in left_out.since(&totals, any) {
                tracing::info!("{count} more: {}", words(operation));
            }
        }
    }
}

/// What was left out and told already.
#[derive(Debug, Default)]
struct LeftOut {
    told: [u64; Operation::ALL.len()],
    /// Something was told or left out just now: more may be, without a message.
    may_grow: bool,
}

impl LeftOut {
    fn since(&mut self, totals: &MsiTotals, any_message: bool) -> Vec<(Operation, u64)> {
        let mut news = Vec::new();
        for ((operation, bucket), told) in Operation::ALL
            .into_iter()
            .zip(&totals.buckets)
            .zip(&mut self.told)
        {
            let count = bucket.left_out.saturating_sub(*told);
            if count > 0 {
                *told = bucket.left_out;
                news.push((operation, count));
            }
        }
        self.may_grow = any_message || !news.is_empty();
        news
    }
}

fn words(operation: Operation) -> &'static str {
    match operation {
        Operation::Enable => "interrupt enabled",
        Operation::Disable => "interrupt disabled",
        Operation::Startup => "interrupt started up",
        Operation::Shutdown => "interrupt shut down",
        Operation::Compose => "message composed for interrupt",
        Operation::Allocate => "interrupt allocated",
        Operation::Free => "interrupt freed",
        Operation::RemapOn => "remapping switched on",
        Operation::RemapOff => "remapping switched off",
        Operation::Move => "vector moved to another CPU",
    }
}

fn line(told: &Told, subject: &Subject) -> String {
    use std::fmt::Write as _;
    let mut line = match (&subject.controller, &told.controller) {
        (Some(address), _) | (None, ControllerName::Address(address)) => format!("VMD {address}"),
        (None, ControllerName::Domain(domain)) => format!("VMD of PCI domain {domain:x}"),
        (None, ControllerName::Vector(_) | ControllerName::Unknown) => "unknown VMD".to_owned(),
    };
    let Told {
        operation,
        controller: _,
        irq,
        cpu,
        to_cpu,
    } = told;
    // Writing to a string cannot fail.
    let _ = write!(line, ": {}", words(*operation));
    if let Some(irq) = irq {
        let _ = write!(line, ": {irq}");
        if let Some(action) = &subject.action {
            let _ = write!(line, " ({action})");
        }
        if let Some(vector) = subject.vector {
            let _ = write!(line, " through vector {vector}");
        }
    }
    if *operation == Operation::Move {
        let _ = write!(line, ", to CPU {to_cpu}");
    }
    let _ = write!(line, ", on CPU {cpu}");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(operation: Operation, controller: ControllerName) -> Told {
        Told {
            operation,
            controller,
            irq: Some(45),
            cpu: 2,
            to_cpu: 3,
        }
    }

    #[test]
    fn a_line_tells_what_is_known() {
        let known = Subject {
            controller: Some("0000:97:00.5".into()),
            action: Some("nvme0q1".into()),
            vector: Some(41),
        };
        let domain = ControllerName::Domain(0x10000);
        assert_eq!(
            line(&told(Operation::Disable, domain.clone()), &known),
            "VMD 0000:97:00.5: interrupt disabled: 45 (nvme0q1) through vector 41, on CPU 2"
        );
        assert_eq!(
            line(&told(Operation::Move, domain), &Subject::default()),
            "VMD of PCI domain 10000: vector moved to another CPU: 45, to CPU 3, on CPU 2"
        );
        let told = Told {
            irq: None,
            ..told(Operation::RemapOff, ControllerName::Unknown)
        };
        assert_eq!(
            line(&told, &Subject::default()),
            "unknown VMD: remapping switched off, on CPU 2"
        );
    }

    #[test]
    fn what_is_left_out_is_told_once() {
        let mut left_out = LeftOut::default();
        let mut totals = MsiTotals::default();
        assert_eq!(left_out.since(&totals, true), []);
        assert!(left_out.may_grow, "a message may be the first of a storm");
        totals.buckets[Operation::Free as usize].left_out = 7;
        assert_eq!(left_out.since(&totals, false), [(Operation::Free, 7)]);
        assert!(left_out.may_grow, "the storm may go on");
        assert_eq!(left_out.since(&totals, false), []);
        assert!(!left_out.may_grow, "quiet for a period: no more waking up");
    }
}
