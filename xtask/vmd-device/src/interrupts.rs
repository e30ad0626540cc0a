//! Delivery of children's messages: through the VMD's own vectors, or past them.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use crate::counters::Mode;
use crate::diagnostics::Diagnostics;
use crate::pci::Message;
use crate::protocol;

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
    pub(crate) vmd_vector_msis: Vec<u64>,
    pub(crate) bypass_msis: u64,
    pub(crate) undelivered_msis: u64,
}

impl Interrupts {
    pub(crate) fn new(vectors: u16, sink: Arc<dyn Sink>) -> Self {
        Self {
            listeners: (0..vectors).map(|_| None).collect(),
            sink,
            next_id: 0,
            vmd_vector_msis: vec![0; usize::from(vectors)],
            bypass_msis: 0,
            undelivered_msis: 0,
        }
    }

    pub(crate) fn vectors(&self) -> u32 {
        self.listeners.len() as u32
    }

    /// Replaces the listener of `vector`, an event file descriptor.
    pub(crate) fn listen(&mut self, vector: usize, listener: Option<File>) {
        if let Some(slot) = self.listeners.get_mut(vector) {
            *slot = listener;
        }
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

    /// Delivers messages in order, as the present mode asks.
    pub(crate) fn deliver(&mut self, mode: Mode, messages: &[Message], log: &mut Diagnostics) {
        for message in messages {
            match mode {
                Mode::Remap => self.remap(message, log),
                Mode::Bypass => self.pass(message, log),
            }
        }
    }

    /// The driver puts the index of one of the VMD's vectors where a message
    /// address has the destination CPU (`vmd_compose_msi_msg`).
    fn remap(&mut self, message: &Message, log: &mut Diagnostics) {
        let vector = (message.address >> 12 & 0xff) as usize;
        if message.address >> 20 != APIC || vector >= self.listeners.len() {
            self.undelivered_msis += 1;
            let address = message.address;
            log.reject(format_args!(
                "MSI to {address:#x} names no vector of the VMD"
            ));
            return;
        }
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
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

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

    #[test]
    fn remapping_signals_the_vector_in_the_address() {
        let (mut listener, ours) = UnixStream::pair().unwrap();
        let recorder = Arc::new(Recorder::default());
        let mut interrupts = Interrupts::new(4, recorder.clone());
        let mut log = Diagnostics::new(false);
        interrupts.listen(2, Some(File::from(std::os::fd::OwnedFd::from(ours))));
        let list = [
            message(0xfee0_2000),
            message(0xfee0_1000),
            message(0xfee0_4000),
            message(0x2000),
        ];
        interrupts.deliver(Mode::Remap, &list, &mut log);
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
        interrupts.listen(2, Some(File::from(std::os::fd::OwnedFd::from(ours))));
        interrupts.deliver(Mode::Remap, &[message(0xfee0_2000)], &mut log);
        assert_eq!(interrupts.vmd_vector_msis, [0; 4]);
        assert_eq!((interrupts.undelivered_msis, log.rejected()), (1, 0));
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
        interrupts.deliver(Mode::Bypass, &list, &mut log);
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
