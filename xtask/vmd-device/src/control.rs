//! The control socket: one JSON request per line, one JSON response per line.
//! Any number of requests per connection, a bounded number of connections.
//!
//! ```text
//! {"command":"counters"}        {"counters":{...}}
//! {"command":"aen","disk":0}    "accepted"
//! {"command":"stall","disk":0}  "accepted"
//! {"command":"resume","disk":0} "accepted"
//! {"command":"remove","disk":0} "accepted"
//! {"command":"insert","disk":0} "accepted"
//! {"command":"link","disk":0,"link":{"speed":"8GT/s","width":"x2"}}
//!                               "accepted"
//! {"command":"msi-fault","disk":0,"vector":1,"nth":1,"fault":"drop"}
//!                               "accepted" (also "duplicate", {"delay":"5ms"})
//! {"command":"vmd-msi-fault","vmd_vector":1,"nth":1,"fault":"drop"}
//!                               "accepted"
//! {"command":"completion-fault","disk":0,"queue":1,"nth":1,"fault":"command-id"}
//!                               "accepted" (also "status")
//! {"command":"service","disk":0,"service":{"latency":"80us","parallelism":32,"iops":350}}
//!                               "accepted"
//! {"command":"shared-service","service":{"latency":"0","parallelism":64,"iops":1000,"from_disks":4}}
//!                               "accepted"
//! anything else                 {"error":"..."}
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::device::EventOutcome;
use crate::faults::{CompletionFault, MsiFault};
use crate::nvme::Controller;
use crate::pci::Link;
use crate::scheduler::Scheduler;
use crate::service::{Service, SharedService};

/// Longest request, and longest response that a client accepts.
const MAX_REQUEST: u64 = 4096;
const MAX_RESPONSE: u64 = 16 << 20;
const MAX_CONNECTIONS: usize = 16;
/// How long a client waits for the device, and the device for a client that does not read.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Read all counters.
    Counters,
    /// Let a disk report a harmless asynchronous event (temperature). Linux logs
    /// nothing and asks for the next one.
    Aen {
        /// Disk index.
        disk: usize,
    },
    /// Let a disk take and complete nothing until it is resumed. A reset by the guest
    /// does not resume it.
    Stall {
        /// Disk index.
        disk: usize,
    },
    /// Let a stalled disk go on.
    Resume {
        /// Disk index.
        disk: usize,
    },
    /// Pull a disk out without notice: its registers read all ones, it does nothing.
    Remove {
        /// Disk index.
        disk: usize,
    },
    /// Plug a disk in again, as after a reset; its data are still there. The guest
    /// has to rescan its bus.
    Insert {
        /// Disk index.
        disk: usize,
    },
    /// Show another link between a disk and its port. How fast the disk is does not
    /// change with it.
    Link {
        /// Disk index.
        disk: usize,
        link: Link,
    },
    /// Let an MSI of a disk go wrong.
    MsiFault {
        /// Disk index.
        disk: usize,
        /// The disk's own vector; any if absent.
        vector: Option<u16>,
        /// Which from now on; 1 is the next.
        nth: u32,
        fault: MsiFault,
    },
    /// Let an MSI go wrong that is to raise one of the VMD's own vectors, whichever
    /// disk it is of. Refused while MSIs bypass those.
    VmdMsiFault {
        /// Index of the VMD's vector.
        vmd_vector: u16,
        /// Which from now on; 1 is the next.
        nth: u32,
        fault: MsiFault,
    },
    /// Let a completion of a disk go wrong.
    CompletionFault {
        /// Disk index.
        disk: usize,
        /// Submission queue; any if absent.
        queue: Option<u16>,
        /// Which from now on; 1 is the next.
        nth: u32,
        fault: CompletionFault,
    },
    /// Change how fast one disk is, or every disk.
    Service {
        /// Disk index.
        disk: Option<usize>,
        service: Service,
    },
    /// Change how fast what the disks share is.
    SharedService { service: SharedService },
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    Counters(Counters),
    /// Done, or will be done as soon as the guest allows.
    Accepted,
    /// Why nothing was done.
    Error(String),
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("control socket: {0}")]
    Socket(#[from] io::Error),
    #[error("control socket: the response is not understood: {0}")]
    Response(#[from] serde_json::Error),
    #[error("control socket: the device closed the connection")]
    Closed,
    #[error("the device refused: {0}")]
    Refused(String),
    #[error("control socket: the response does not belong to the request")]
    Unexpected,
}

/// A connection to a device's control socket.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the control socket at `path`.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Everything the device counted, at one moment.
    pub fn counters(&mut self) -> Result<Counters, ClientError> {
        match self.request(&Request::Counters)? {
            Response::Counters(counters) => Ok(counters),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Makes disk `disk` report an asynchronous event. When this returns, the
    /// completion is posted if the guest had an event request outstanding.
    pub fn raise_event(&mut self, disk: usize) -> Result<(), ClientError> {
        self.ask(&Request::Aen { disk })
    }

    /// Changes how fast disk `disk` is, or every disk. Commands in service keep the
    /// latency that they started with.
    pub fn set_service(
        &mut self,
        disk: Option<usize>,
        service: Service,
    ) -> Result<(), ClientError> {
        self.ask(&Request::Service { disk, service })
    }

    /// Changes how fast what the disks share is.
    pub fn set_shared_service(&mut self, service: SharedService) -> Result<(), ClientError> {
        self.ask(&Request::SharedService { service })
    }

    /// Asks for something that is only accepted or refused.
    pub fn ask(&mut self, request: &Request) -> Result<(), ClientError> {
        match self.request(request)? {
            Response::Accepted => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Sends a request and waits for its response, 10 seconds at most.
    pub fn request(&mut self, request: &Request) -> Result<Response, ClientError> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        let mut response = Vec::new();
        (&mut self.stream)
            .take(MAX_RESPONSE)
            .read_until(b'\n', &mut response)?;
        if response.last() != Some(&b'\n') {
            return Err(ClientError::Closed);
        }
        match serde_json::from_slice(&response)? {
            Response::Error(reason) => Err(ClientError::Refused(reason)),
            response => Ok(response),
        }
    }
}

/// Serves the control socket in threads of its own, until the process ends.
pub(crate) fn serve(listener: UnixListener, device: Arc<Scheduler>) -> io::Result<()> {
    let connections = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            for stream in listener.incoming() {
                // A connection that failed before it was accepted is the client's affair.
                let Ok(stream) = stream else { continue };
                if connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                    let refusal = Response::Error("too many control connections".to_owned());
                    // The client may be gone already.
                    let _ = write_response(&stream, &refusal);
                    connections.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let (device, open) = (Arc::clone(&device), Arc::clone(&connections));
                let session = move || {
                    if let Err(error) = serve_client(&stream, &device) {
                        eprintln!("vmd-device: control connection ended: {error}");
                    }
                    open.fetch_sub(1, Ordering::Relaxed);
                };
                let thread = std::thread::Builder::new().name("control client".to_owned());
                if let Err(error) = thread.spawn(session) {
                    eprintln!("vmd-device: cannot serve a control connection: {error}");
                    connections.fetch_sub(1, Ordering::Relaxed);
                }
            }
        })?;
    Ok(())
}

fn serve_client(stream: &UnixStream, device: &Scheduler) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        (&mut reader)
            .take(MAX_REQUEST)
            .read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        if line.last() != Some(&b'\n') && line.len() as u64 == MAX_REQUEST {
            let refusal = Response::Error(format!("a request has at most {MAX_REQUEST} bytes"));
            return write_response(stream, &refusal);
        }
        write_response(stream, &respond(&line, device))?;
    }
}

fn respond(line: &[u8], device: &Scheduler) -> Response {
    match serde_json::from_slice(line) {
        Ok(Request::Counters) => {
            let counters = device.with(|device| {
                // Nothing that is due by now may be missing.
                device.advance();
                device.counters()
            });
            Response::Counters(counters)
        }
        Ok(Request::Aen { disk }) => {
            let outcome = device.with(|device| device.raise_event(disk));
            match outcome {
                EventOutcome::Accepted => Response::Accepted,
                EventOutcome::NotNow => Response::Error(format!(
                    "disk {disk} is not running or has too many events waiting"
                )),
                EventOutcome::NoSuchDisk => no_disk(disk),
            }
        }
        Ok(Request::Stall { disk }) => found(device.with(|it| it.set_stalled(disk, true)), disk),
        Ok(Request::Resume { disk }) => found(device.with(|it| it.set_stalled(disk, false)), disk),
        Ok(Request::Remove { disk }) => found(device.with(|it| it.set_present(disk, false)), disk),
        Ok(Request::Insert { disk }) => found(device.with(|it| it.set_present(disk, true)), disk),
        Ok(Request::Link { disk, link }) => found(device.with(|it| it.set_link(disk, link)), disk),
        Ok(Request::MsiFault {
            disk,
            vector,
            nth,
            fault,
        }) => {
            let plan = |it: &mut Controller| it.plan_msi_fault(vector, nth, fault);
            planned(device.with(|device| device.plan(disk, plan)), disk)
        }
        Ok(Request::VmdMsiFault {
            vmd_vector,
            nth,
            fault,
        }) => match device.with(|device| device.plan_vmd_fault(vmd_vector, nth, fault)) {
            Ok(()) => Response::Accepted,
            Err(refusal) => Response::Error(refusal.to_string()),
        },
        Ok(Request::CompletionFault {
            disk,
            queue,
            nth,
            fault,
        }) => {
            let plan = |it: &mut Controller| it.plan_completion_fault(queue, nth, fault);
            planned(device.with(|device| device.plan(disk, plan)), disk)
        }
        Ok(Request::Service { disk, service }) => {
            if let Err(reason) = service.check() {
                return Response::Error(reason);
            }
            match (
                device.with(|device| device.set_service(disk, service)),
                disk,
            ) {
                (false, Some(disk)) => no_disk(disk),
                _ => Response::Accepted,
            }
        }
        Ok(Request::SharedService { service }) => match service.check() {
            Ok(()) => {
                device.with(|device| device.set_shared_service(service));
                Response::Accepted
            }
            Err(reason) => Response::Error(reason),
        },
        Err(error) => Response::Error(format!("not a request: {error}")),
    }
}

fn found(found: bool, disk: usize) -> Response {
    if found {
        Response::Accepted
    } else {
        no_disk(disk)
    }
}

fn planned(planned: Option<bool>, disk: usize) -> Response {
    match planned {
        Some(true) => Response::Accepted,
        Some(false) => Response::Error(format!("too many faults of disk {disk} wait")),
        None => no_disk(disk),
    }
}

fn no_disk(disk: usize) -> Response {
    Response::Error(format!("there is no disk {disk}"))
}

fn write_response(mut stream: &UnixStream, response: &Response) -> io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::interrupts::tests::Recorder;

    fn server(directory: &Path) -> std::path::PathBuf {
        let config = Config {
            disks: 2,
            disk_bytes: 1 << 20,
            ..Config::default()
        };
        let device = crate::device::Device::new(
            &config,
            Arc::new(Recorder::default()),
            crate::clock::Clock::start(),
            false,
        )
        .unwrap();
        let path = directory.join("control");
        let listener = UnixListener::bind(&path).unwrap();
        serve(listener, Arc::new(Scheduler::new(device))).unwrap();
        path
    }

    #[test]
    fn several_clients_read_counters_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = server(directory.path());
        let mut first = Client::connect(&path).unwrap();
        let mut second = Client::connect(&path).unwrap();
        for client in [&mut first, &mut second] {
            for _ in 0..2 {
                let counters = client.counters().unwrap();
                assert_eq!(counters.disks[1].serial, "VMDLABA0001");
                assert_eq!(counters.vmd_vector_msis, [0; 8]);
            }
        }
    }

    #[test]
    fn refusals_say_why_and_keep_the_connection() {
        let directory = tempfile::tempdir().unwrap();
        let mut client = Client::connect(server(directory.path())).unwrap();
        let stopped = client.raise_event(0).unwrap_err().to_string();
        assert!(stopped.contains("not running"), "{stopped}");
        let missing = client.raise_event(7).unwrap_err().to_string();
        assert!(missing.contains("no disk 7"), "{missing}");
        client
            .stream
            .get_mut()
            .write_all(b"{\"command\":\"fly\"}\n")
            .unwrap();
        let mut line = String::new();
        client.stream.read_line(&mut line).unwrap();
        assert!(line.starts_with("{\"error\":\"not a request"), "{line}");
        client.counters().unwrap();
    }

    #[test]
    fn the_speed_of_a_running_device_can_be_changed() {
        let directory = tempfile::tempdir().unwrap();
        let mut client = Client::connect(server(directory.path())).unwrap();
        let service = Service {
            latency: "80us".parse().unwrap(),
            ..Service::default()
        };
        client.set_service(None, service).unwrap();
        client.set_service(Some(1), service).unwrap();
        client.set_shared_service(SharedService::default()).unwrap();
        client.ask(&Request::Stall { disk: 1 }).unwrap();
        client.ask(&Request::Resume { disk: 1 }).unwrap();
        let mut accepted = |request: &str| {
            let request = serde_json::from_str(request).unwrap();
            client.ask(&request).is_ok()
        };
        assert!(accepted(r#"{"command":"remove","disk":1}"#));
        assert!(accepted(r#"{"command":"insert","disk":1}"#));
        let link = r#"{"command":"link","disk":1,"link":{"speed":"8GT/s","width":"x2"}}"#;
        assert!(accepted(link) && !accepted(&link.replace("1,", "2,")));
        for fault in [r#""drop""#, r#""duplicate""#, r#"{"delay":"5ms"}"#] {
            let request = |disk: u8| {
                format!(r#"{{"command":"msi-fault","disk":{disk},"nth":3,"fault":{fault}}}"#)
            };
            assert!(accepted(&request(1)) && !accepted(&request(2)));
        }
        let mut accept_vmd = |vector: u8| {
            accepted(&format!(
                r#"{{"command":"vmd-msi-fault","vmd_vector":{vector},"nth":1,"fault":"drop"}}"#
            ))
        };
        assert!(!accept_vmd(8));
        assert_eq!((0..100).filter(|_| accept_vmd(7)).count(), 64);
        let mut planned = 0;
        for fault in ["command-id", "status"] {
            let request = format!(
                r#"{{"command":"completion-fault","disk":0,"queue":1,"nth":1,"fault":"{fault}"}}"#
            );
            planned += (0..40).filter(|_| accepted(&request)).count();
        }
        assert_eq!(planned, 64);
        assert!(!accepted(
            r#"{"command":"completion-fault","disk":0,"nth":1,"fault":"status"}"#
        ));
        let text = r#"{"command":"service","service":{"latency":"80us"}}"#;
        let request = Request::Service {
            disk: None,
            service,
        };
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        let no_parallelism = Service {
            parallelism: 0,
            ..service
        };
        let no_disks = SharedService {
            from_disks: 0,
            ..SharedService::default()
        };
        for (refused, why) in [
            (client.set_service(Some(2), service), "no disk 2"),
            (client.set_service(None, no_parallelism), "parallelism must"),
            (client.set_shared_service(no_disks), "from_disks must"),
            (client.ask(&Request::Stall { disk: 2 }), "no disk 2"),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut stream = UnixStream::connect(server(directory.path())).unwrap();
        stream.write_all(&[b' '; MAX_REQUEST as usize]).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("at most 4096 bytes"), "{answer}");
    }
}
