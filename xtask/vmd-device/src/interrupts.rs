//! Delivery of children's messages: through the VMD's own vectors, or past them.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::counters::Mode;
use crate::diagnostics::Diagnostics;
use crate::faults::{Delay, MsiFault, Plan};
use crate::pci::Message;
use crate::protocol;
use crate::service::Nanos;

/// Where messages to the client go, each as a whole.
pub(crate) trait Sink: fmt::Debug + Send + Sync {
    fn send(&self, message: &[u8]) -> io::Result<()>;
}

/// The local APICs' addresses: the upper 12 bits of a message address.
const APIC: u64 = 0xfee;

/// The VMD's vectors as the client listens to them, and what was delivered.
#[derive(Debug)]
pub(crate) struct Interrupts {
    listeners: Vec<Option<File>>,
    sink: Arc<dyn Sink>,
    next_id: u16,
    faults: Plan<MsiFault>,
    /// Vectors to be raised later than they should, and when.
    delayed: Vec<(Nanos, usize)>,
    pub(crate) vmd_vector_msis: Vec<u64>,
    pub(crate) vmd_dropped_msis: u64,
    pub(crate) vmd_duplicated_msis: u64,
    pub(crate) vmd_delayed_msis: u64,
    pub(crate) bypass_msis: u64,
    pub(crate) undelivered_msis: u64,
}

impl Interrupts {
    pub(crate) fn new(vectors: u16, sink: Arc<dyn Sink>) -> Self {
        Self {
            listeners: (0..vectors).map(|_| None).collect(),
            sink,
            next_id: 0,
            faults: Plan::default(),
            delayed: Vec::new(),
            vmd_vector_msis: vec![0; usize::from(vectors)],
            vmd_dropped_msis: 0,
            vmd_duplicated_msis: 0,
            vmd_delayed_msis: 0,
            bypass_msis: 0,
            undelivered_msis: 0,
        }
    }

    pub(crate) fn vectors(&self) -> u32 {
        self.listeners.len() as u32
    }

    /// Replaces the listener of `vector`, an event file descriptor. It must not block
    /// the device, whatever the client left in it.
    pub(crate) fn listen(&mut self, vector: usize, listener: Option<File>) -> io::Result<()> {
        if let Some(file) = &listener {
            let flags = fcntl_getfl(file)?;
            if !flags.contains(OFlags::NONBLOCK) {
                fcntl_setfl(file, flags | OFlags::NONBLOCK)?;
            }
        }
        if let Some(slot) = self.listeners.get_mut(vector) {
            *slot = listener;
        }
        Ok(())
    }

    pub(crate) fn listen_to_none(&mut self) {
        self.listeners.fill_with(|| None);
    }

    /// Signals `vector` without counting it as a child's interrupt.
    pub(crate) fn trigger(&self, vector: usize) -> io::Result<()> {
        let Some(Some(file)) = self.listeners.get(vector) else {
            return Err(io::Error::other("nobody listens"));
        };
        let mut file = file;
        file.write_all(&1_u64.to_ne_bytes())
    }

    /// Lets the `nth` MSI from now on that is to raise `vector` go wrong. False if
    /// too many faults wait.
    pub(crate) fn plan_fault(&mut self, vector: u16, nth: u32, fault: MsiFault) -> bool {
        self.faults.add(Some(vector), nth, fault)
    }

    /// When a vector is raised that was delayed.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.delayed.iter().map(|(due, _)| *due).min()
    }

    /// Raises what was delayed until now, then delivers messages in order, as the
    /// present mode asks.
    pub(crate) fn deliver(
        &mut self,
        mode: Mode,
        messages: &[Message],
        now: Nanos,
        log: &mut Diagnostics,
    ) {
        let late: Vec<_> = self
            .delayed
            .extract_if(.., |(due, _)| *due <= now)
            .collect();
        for (_, vector) in late {
            self.raise(vector, log);
        }
        for message in messages {
            match mode {
                Mode::Remap => self.remap(message, now, log),
                Mode::Bypass => self.pass(message, log),
            }
        }
    }

    /// The driver puts the index of one of the VMD's vectors where a message
    /// address has the destination CPU (`vmd_compose_msi_msg`).
    fn remap(&mut self, message: &Message, now: Nanos, log: &mut Diagnostics) {
        let vector = (message.address >> 12 & 0xff) as usize;
        if message.address >> 20 != APIC || vector >= self.listeners.len() {
            self.undelivered_msis += 1;
            let address = message.address;
            log.reject(format_args!(
                "MSI to {address:#x} names no vector of the VMD"
            ));
            return;
        }
        match self.faults.next(vector as u16) {
            None => self.raise(vector, log),
            Some(MsiFault::Drop) => self.vmd_dropped_msis += 1,
            Some(MsiFault::Duplicate) => {
                self.vmd_duplicated_msis += 1;
                self.raise(vector, log);
                self.raise(vector, log);
            }
            Some(MsiFault::Delay(Delay(delay))) => {
                self.vmd_delayed_msis += 1;
                self.delayed.push((now.saturating_add(delay), vector));
            }
        }
    }

    /// Raises a vector for a child, and counts it.
    fn raise(&mut self, vector: usize, log: &mut Diagnostics) {
        match (self.trigger(vector), self.vmd_vector_msis.get_mut(vector)) {
            (Ok(()), Some(count)) => *count += 1,
            (result, _) => {
                self.undelivered_msis += 1;
                if let Err(error) = result {
                    log.info(format_args!("VMD vector {vector}: {error}"));
                }
            }
        }
    }

    fn pass(&mut self, message: &Message, log: &mut Diagnostics) {
        let address = message.address;
        if address >> 20 != APIC {
            self.undelivered_msis += 1;
            log.reject(format_args!(
                "MSI to {address:#x}, which is no interrupt controller"
            ));
            return;
        }
        self.next_id = self.next_id.wrapping_add(1);
        let write = protocol::dma_write(self.next_id, address, &message.data.to_le_bytes());
        match self.sink.send(&write) {
            Ok(()) => self.bypass_msis += 1,
            Err(error) => {
                self.undelivered_msis += 1;
                log.info(format_args!("cannot send an MSI to the client: {error}"));
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    use rustix::event::{EventfdFlags, eventfd};

    /// Keeps what is sent.
    #[derive(Debug, Default)]
    pub(crate) struct Recorder(pub(crate) Mutex<Vec<Vec<u8>>>);

    impl Sink for Recorder {
        fn send(&self, message: &[u8]) -> io::Result<()> {
            self.0.lock().unwrap().push(message.to_vec());
            Ok(())
        }
    }

    fn message(address: u64) -> Message {
        Message {
            vector: 0,
            address,
            data: 0x4021,
        }
    }

    fn listen(interrupts: &mut Interrupts, vector: usize, listener: impl Into<OwnedFd>) {
        let listener = File::from(listener.into());
        interrupts.listen(vector, Some(listener)).unwrap();
    }

    #[test]
    fn remapping_signals_the_vector_in_the_address() {
        let (mut listener, ours) = UnixStream::pair().unwrap();
        let recorder = Arc::new(Recorder::default());
        let mut interrupts = Interrupts::new(4, recorder.clone());
        let mut log = Diagnostics::new(false);
        listen(&mut interrupts, 2, ours);
        let list = [
            message(0xfee0_2000),
            message(0xfee0_1000),
            message(0xfee0_4000),
            message(0x2000),
        ];
        interrupts.deliver(Mode::Remap, &list, 0, &mut log);
        assert_eq!(interrupts.vmd_vector_msis, [0, 0, 1, 0]);
        assert_eq!((interrupts.undelivered_msis, log.rejected()), (3, 2));
        let mut signal = [0; 8];
        listener.read_exact(&mut signal).unwrap();
        assert_eq!(u64::from_ne_bytes(signal), 1);
        assert!(recorder.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_vector_whose_listener_has_gone_is_not_counted_as_signalled() {
        let (listener, ours) = UnixStream::pair().unwrap();
        drop(listener);
        let mut interrupts = Interrupts::new(4, Arc::new(Recorder::default()));
        let mut log = Diagnostics::new(false);
        listen(&mut interrupts, 2, ours);
        interrupts.deliver(Mode::Remap, &[message(0xfee0_2000)], 0, &mut log);
        assert_eq!(interrupts.vmd_vector_msis, [0; 4]);
        assert_eq!((interrupts.undelivered_msis, log.rejected()), (1, 0));
    }

    /// A client that never reads what it is told by: the device must not wait for it.
    #[test]
    fn a_full_listener_does_not_block() {
        let full = eventfd(u32::MAX, EventfdFlags::CLOEXEC).unwrap();
        // The most that an event counter holds (eventfd(2)).
        let more = (u64::MAX - 1 - u64::from(u32::MAX)).to_ne_bytes();
        rustix::io::write(&full, &more).unwrap();
        let mut interrupts = Interrupts::new(4, Arc::new(Recorder::default()));
        let mut log = Diagnostics::new(false);
        listen(&mut interrupts, 1, full);
        interrupts.deliver(Mode::Remap, &[message(0xfee0_1000)], 0, &mut log);
        assert_eq!(interrupts.vmd_vector_msis, [0; 4]);
        assert_eq!(interrupts.undelivered_msis, 1);
    }

    #[test]
    fn a_vectors_msis_are_lost_doubled_and_late_as_told() {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut interrupts = Interrupts::new(4, Arc::new(Recorder::default()));
        let mut log = Diagnostics::new(false);
        listen(&mut interrupts, 1, event.try_clone().unwrap());
        listen(&mut interrupts, 2, event.try_clone().unwrap());
        let mut raised = |interrupts: &mut Interrupts, address: Option<u64>, now| {
            let messages: Vec<_> = address.map(message).into_iter().collect();
            interrupts.deliver(Mode::Remap, &messages, now, &mut log);
            let mut count = [0; 8];
            match rustix::io::read(&event, &mut count) {
                Ok(_) => u64::from_ne_bytes(count),
                Err(_) => 0,
            }
        };
        let (one, other) = (Some(0xfee0_1000), Some(0xfee0_2000));
        assert!(interrupts.plan_fault(1, 1, MsiFault::Drop));
        assert!(interrupts.plan_fault(1, 2, MsiFault::Duplicate));
        assert!(interrupts.plan_fault(1, 3, MsiFault::Delay(Delay(50))));
        // Another vector's are not counted.
        assert_eq!(raised(&mut interrupts, other, 0), 1);
        assert_eq!(raised(&mut interrupts, one, 1), 0);
        assert_eq!(raised(&mut interrupts, one, 2), 2);
        assert_eq!(raised(&mut interrupts, one, 3), 0);
        assert_eq!(interrupts.next_due(), Some(53));
        assert_eq!(raised(&mut interrupts, None, 52), 0);
        assert_eq!(raised(&mut interrupts, one, 53), 2);
        assert_eq!(interrupts.next_due(), None);
        assert_eq!(interrupts.vmd_vector_msis, [0, 4, 1, 0]);
        let faults = (
            interrupts.vmd_dropped_msis,
            interrupts.vmd_duplicated_msis,
            interrupts.vmd_delayed_msis,
        );
        assert_eq!(faults, (1, 1, 1));
    }

    #[test]
    fn bypass_sends_only_to_the_interrupt_controller() {
        let recorder = Arc::new(Recorder::default());
        let mut interrupts = Interrupts::new(4, recorder.clone());
        let mut log = Diagnostics::new(false);
        let list = [
            message(0xfee0_3000),
            message(0x10_0000),
            message(0x1_fee0_0000),
        ];
        interrupts.deliver(Mode::Bypass, &list, 0, &mut log);
        assert_eq!(
            (interrupts.bypass_msis, interrupts.undelivered_msis),
            (1, 2)
        );
        let sent = recorder.0.lock().unwrap();
        assert_eq!(
            sent[..],
            [protocol::dma_write(
                1,
                0xfee0_3000,
                &0x4021_u32.to_le_bytes()
            )]
        );
    }
}
