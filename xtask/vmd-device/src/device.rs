//! The device as its client sees it: requests in, replies out.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use vm_memory::mmap::MmapRegionError;

use crate::clock::Clock;
use crate::config::Config;
use crate::counters::{Counters, Mode};
use crate::diagnostics::Diagnostics;
use crate::endpoint::{Endpoint, REGIONS, Region};
use crate::faults::MsiFault;
use crate::interrupts::{Interrupts, Sink};
use crate::memory::{GuestMemory, MapError};
use crate::nvme::{Controller, Environment};
use crate::pci::Link;
use crate::protocol::{self, RegionWrite, Request};
use crate::service::{Nanos, Service, SharedService};

/// Interrupt types of a vfio PCI device, and the index of MSI-X, the only one here.
const IRQ_TYPES: u32 = 5;
const IRQ_MSIX: u32 = 2;

/// Flags of an interrupt set-up request.
mod irq_set {
    pub(super) const DATA_NONE: u32 = 1;
    pub(super) const DATA_EVENTFD: u32 = 4;
    pub(super) const ACTION_TRIGGER: u32 = 0x20;
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Protocol(#[from] protocol::ProtocolError),
    #[error("memory cannot be mapped or unmapped: {0}")]
    Memory(#[from] MapError),
    #[error("region {region} has no {count} bytes at {offset:#x}")]
    Region {
        region: u32,
        offset: u64,
        count: usize,
    },
    #[error("there is no region or interrupt type {0}")]
    Index(u32),
    #[error("a descriptor to be told of interrupts by cannot be used: {0}")]
    Listener(std::io::Error),
    #[error(
        "interrupt set-up with flags {flags:#x} for type {index}, {count} from {start}, {fds} descriptors"
    )]
    IrqSet {
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        fds: usize,
    },
}

impl Refusal {
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::Protocol(error) => error.errno(),
            Self::Memory(MapError::Overlap { .. }) => Errno::EXIST,
            Self::Memory(MapError::TooMany) => Errno::NOSPC,
            _ => Errno::INVAL,
        }
    }
}

/// What an event request from the control socket led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOutcome {
    Accepted,
    /// The controller is not running, or has too many events waiting.
    NotNow,
    NoSuchDisk,
}

/// Why no fault of a VMD's vector was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VmdFaultRefusal {
    #[error("there is no VMD vector {vector}, the VMD has {vectors}")]
    NoSuchVector { vector: u16, vectors: u32 },
    #[error("MSIs bypass the VMD's vectors: let one of a disk go wrong instead")]
    Bypass,
    #[error("too many faults of VMD vectors wait")]
    TooMany,
}

/// The VMD endpoint with what connects it to the client.
#[derive(Debug)]
pub(crate) struct Device {
    endpoint: Endpoint,
    memory: GuestMemory,
    interrupts: Interrupts,
    diagnostics: Diagnostics,
    clock: Clock,
}

impl Device {
    pub(crate) fn new(
        config: &Config,
        sink: Arc<dyn Sink>,
        clock: Clock,
        verbose: bool,
    ) -> Result<Self, MmapRegionError> {
        Ok(Self {
            endpoint: Endpoint::new(config)?,
            memory: GuestMemory::default(),
            interrupts: Interrupts::new(config.vectors, sink),
            diagnostics: Diagnostics::new(verbose),
            clock,
        })
    }

    /// The device's time.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// When `advance` has to be called next, if no request comes.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        let times = [self.endpoint.next_due(), self.interrupts.next_due()];
        times.into_iter().flatten().min()
    }

    /// Lets everything happen that is due by now.
    pub(crate) fn advance(&mut self) {
        self.advance_to(self.now());
    }

    fn advance_to(&mut self, now: Nanos) {
        let mut env = Environment {
            now,
            memory: &self.memory,
            diagnostics: &mut self.diagnostics,
        };
        self.endpoint.advance(&mut env);
        let messages = self.endpoint.take_messages(now);
        let mode = self.endpoint.mode();
        self.interrupts
            .deliver(mode, &messages, now, &mut self.diagnostics);
    }

    /// Serves a request; the result is the body of the reply. A refused request
    /// is counted and logged here.
    pub(crate) fn handle(
        &mut self,
        command: u16,
        body: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Vec<u8>, Errno> {
        let now = self.now();
        // What is due happens before: it may free the room that a new command takes.
        if self.next_due().is_some_and(|due| due <= now) {
            self.advance_to(now);
        }
        let served = protocol::parse(command, body)
            .map_err(Refusal::from)
            .and_then(|request| self.serve(request, body, fds, now));
        served.map_err(|refusal| {
            self.diagnostics
                .reject(format_args!("request {command} refused: {refusal}"));
            refusal.errno()
        })
    }

    fn serve(
        &mut self,
        request: Request<'_>,
        body: &[u8],
        fds: Vec<OwnedFd>,
        now: Nanos,
    ) -> Result<Vec<u8>, Refusal> {
        // Some replies begin with what the request began with.
        let echo = |length: usize| body.get(..length).unwrap_or_default().to_vec();
        match request {
            Request::Version { minor } => {
                self.diagnostics
                    .info(format_args!("client speaks vfio-user 0.{minor}"));
                Ok(protocol::version_body())
            }
            Request::DmaMap {
                writable,
                offset,
                address,
                size,
            } => {
                self.map(writable, offset, address, size, fds)?;
                Ok(Vec::new())
            }
            Request::DmaUnmap { all, address, size } => {
                self.diagnostics
                    .detail(format_args!("unmap {address:#x}+{size:#x}, all: {all}"));
                if all {
                    self.memory.unmap_all();
                } else {
                    self.memory.unmap(address, size)?;
                }
                Ok(echo(24))
            }
            Request::GetInfo => Ok(protocol::device_info_body(REGIONS, IRQ_TYPES)),
            Request::RegionInfo { index } if index < REGIONS => {
                let size = Region::from_index(index).map_or(0, Region::len);
                Ok(protocol::region_info_body(index, size))
            }
            Request::IrqInfo { index } if index < IRQ_TYPES => {
                let count = if index == IRQ_MSIX {
                    self.interrupts.vectors()
                } else {
                    0
                };
                Ok(protocol::irq_info_body(index, count))
            }
            Request::RegionInfo { index } | Request::IrqInfo { index } => {
                Err(Refusal::Index(index))
            }
            Request::SetIrqs {
                flags,
                index,
                start,
                count,
            } => {
                self.set_irqs(flags, index, start, count, fds)?;
                Ok(Vec::new())
            }
            Request::RegionRead {
                region,
                offset,
                count,
            } => {
                let target = check(region, offset, count)?;
                let mut reply = echo(16);
                reply.resize(16 + count, 0);
                let env = Environment {
                    now,
                    memory: &self.memory,
                    diagnostics: &mut self.diagnostics,
                };
                if let Some(out) = reply.get_mut(16..) {
                    self.endpoint.read(target, offset, out, &env);
                }
                Ok(reply)
            }
            Request::RegionWrite(write) => {
                self.write(&write, now)?;
                Ok(echo(16))
            }
            Request::WriteMulti(writes) => {
                for write in &writes {
                    self.write(write, now)?;
                }
                Ok(echo(8))
            }
            Request::Reset => {
                self.diagnostics.info(format_args!("reset by the client"));
                self.endpoint.reset();
                Ok(Vec::new())
            }
        }
    }

    fn map(
        &mut self,
        writable: bool,
        offset: u64,
        address: u64,
        size: u64,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        self.diagnostics.detail(format_args!(
            "map {address:#x}+{size:#x}, writable: {writable}"
        ));
        match fds.into_iter().next() {
            Some(fd) => Ok(self
                .memory
                .map(File::from(fd), offset, address, size, writable)?),
            None => {
                // Allowed by the protocol; the client would copy on request. The
                // disks do no I/O there: a command that tries gets an error.
                let range = format_args!("{address:#x}+{size:#x}");
                self.diagnostics
                    .info(format_args!("memory {range} has no file and is not mapped"));
                Ok(())
            }
        }
    }

    fn set_irqs(
        &mut self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let refusal = Refusal::IrqSet {
            flags,
            index,
            start,
            count,
            fds: fds.len(),
        };
        if index >= IRQ_TYPES {
            return Err(refusal);
        }
        if count == 0 {
            if index == IRQ_MSIX {
                self.interrupts.listen_to_none();
            }
            return Ok(());
        }
        let fits = start
            .checked_add(count)
            .is_some_and(|end| end <= self.interrupts.vectors());
        if index != IRQ_MSIX || !fits || flags & irq_set::ACTION_TRIGGER == 0 {
            return Err(refusal);
        }
        let vectors = start as usize..(start + count) as usize;
        if flags & irq_set::DATA_EVENTFD != 0 {
            // No descriptors at all means that nobody listens any more.
            if !fds.is_empty() && fds.len() != vectors.len() {
                return Err(refusal);
            }
            let mut fds = fds.into_iter();
            for vector in vectors {
                self.interrupts
                    .listen(vector, fds.next().map(File::from))
                    .map_err(Refusal::Listener)?;
            }
            Ok(())
        } else if flags & irq_set::DATA_NONE != 0 {
            for vector in vectors {
                if let Err(error) = self.interrupts.trigger(vector) {
                    self.diagnostics
                        .info(format_args!("VMD vector {vector}: {error}"));
                }
            }
            Ok(())
        } else {
            Err(refusal)
        }
    }

    fn write(&mut self, write: &RegionWrite<'_>, now: Nanos) -> Result<(), Refusal> {
        let target = check(write.region, write.offset, write.data.len())?;
        let mut env = Environment {
            now,
            memory: &self.memory,
            diagnostics: &mut self.diagnostics,
        };
        self.endpoint
            .write(target, write.offset, write.data, &mut env);
        self.advance_to(now);
        Ok(())
    }

    /// Everything counted so far.
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            mode: self.endpoint.mode(),
            disks: self.endpoint.disk_counters(),
            vmd_vector_msis: self.interrupts.vmd_vector_msis.clone(),
            vmd_dropped_msis: self.interrupts.vmd_dropped_msis,
            vmd_duplicated_msis: self.interrupts.vmd_duplicated_msis,
            vmd_delayed_msis: self.interrupts.vmd_delayed_msis,
            bypass_msis: self.interrupts.bypass_msis,
            undelivered_msis: self.interrupts.undelivered_msis,
            rejected: self.diagnostics.rejected(),
        }
    }

    /// Makes a disk report an asynchronous event.
    pub(crate) fn raise_event(&mut self, disk: usize) -> EventOutcome {
        let outcome = match self.endpoint.disk(disk).map(Controller::raise_event) {
            Some(true) => EventOutcome::Accepted,
            Some(false) => EventOutcome::NotNow,
            None => EventOutcome::NoSuchDisk,
        };
        self.advance();
        outcome
    }

    /// Changes the speed of one disk, or of all; false if there is no such disk.
    pub(crate) fn set_service(&mut self, disk: Option<usize>, service: Service) -> bool {
        let found = self.endpoint.set_service(disk, service);
        self.advance();
        found
    }

    /// Lets something go wrong with a disk; `None` if there is no such disk, false
    /// if too many faults wait.
    pub(crate) fn plan(
        &mut self,
        disk: usize,
        plan: impl FnOnce(&mut Controller) -> bool,
    ) -> Option<bool> {
        // What was due before is not meant.
        self.advance();
        self.endpoint.disk(disk).map(plan)
    }

    /// Lets an MSI go wrong that is to raise one of the VMD's vectors.
    pub(crate) fn plan_vmd_fault(
        &mut self,
        vector: u16,
        nth: u32,
        fault: MsiFault,
    ) -> Result<(), VmdFaultRefusal> {
        // What was due before is not meant.
        self.advance();
        let vectors = self.interrupts.vectors();
        if u32::from(vector) >= vectors {
            return Err(VmdFaultRefusal::NoSuchVector { vector, vectors });
        }
        if self.endpoint.mode() == Mode::Bypass {
            return Err(VmdFaultRefusal::Bypass);
        }
        if self.interrupts.plan_fault(vector, nth, fault) {
            Ok(())
        } else {
            Err(VmdFaultRefusal::TooMany)
        }
    }

    /// Pulls a disk out or plugs it in; false if there is no such disk.
    pub(crate) fn set_present(&mut self, disk: usize, present: bool) -> bool {
        self.advance();
        self.endpoint.set_present(disk, present)
    }

    /// Changes the link to a disk; false if there is no such disk.
    pub(crate) fn set_link(&mut self, disk: usize, link: Link) -> bool {
        self.endpoint.set_link(disk, link)
    }

    /// Stalls a disk or lets it go on; false if there is no such disk.
    pub(crate) fn set_stalled(&mut self, disk: usize, stalled: bool) -> bool {
        // What is due now is not held back.
        self.advance();
        let now = self.now();
        let found = self.endpoint.disk(disk).map(|disk| {
            disk.schedule_mut().set_stalled(stalled, now);
        });
        self.advance();
        found.is_some()
    }

    /// Changes the speed of what the disks share.
    pub(crate) fn set_shared_service(&mut self, service: SharedService) {
        self.endpoint.set_shared_service(service);
        self.advance();
    }
}

/// The region, if it has `count` bytes at `offset`.
fn check(index: u32, offset: u64, count: usize) -> Result<Region, Refusal> {
    let refusal = Refusal::Region {
        region: index,
        offset,
        count,
    };
    let Some(region) = Region::from_index(index) else {
        return Err(refusal);
    };
    match offset.checked_add(count as u64) {
        Some(end) if end <= region.len() => Ok(region),
        _ => Err(refusal),
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
