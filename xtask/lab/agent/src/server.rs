//! Serves the host's requests, each in a thread of its own.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lab_agent::{
    Answer, Envelope, Frame, FrameError, Hello, MAX_PAYLOAD, PORT_NAME, Reply, Request,
};

use nix::fcntl::{FallocateFlags, fallocate};

use crate::jobs::{Jobs, Output, lock};
use crate::{bpf, machine, nvme};

/// Serves until the host asks to switch off or the channel fails.
pub(crate) fn serve() -> Result<(), String> {
    let mut requests = machine::open_port(PORT_NAME)?;
    let answers = requests
        .try_clone()
        .map_err(|error| format!("{PORT_NAME}: {error}"))?;
    let answers = Arc::new(Mutex::new(answers));
    let jobs = Arc::new(Jobs::default());
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let hello = Hello {
        kernel_release: release.trim_end().to_owned(),
    };
    send(&answers, &Frame::from(hello)).map_err(|error| error.to_string())?;
    loop {
        let frame = Frame::<Envelope<Request>>::read_from(&mut requests)
            .map_err(|error| error.to_string())?;
        let Envelope { id, body } = frame.message;
        let power_off = body == Request::PowerOff;
        let (jobs, answers) = (Arc::clone(&jobs), Arc::clone(&answers));
        let answer = move || {
            let (reply, payload) = match perform(&jobs, body, &frame.payload) {
                Ok((answer, payload)) => (Ok(answer), payload),
                Err(error) => (Err(error), Vec::new()),
            };
            respond(&answers, id, reply, payload);
        };
        if power_off {
            // PID 1 switches the machine off once this process has ended.
            answer();
            return Ok(());
        }
        if let Err(error) = std::thread::Builder::new().spawn(answer) {
            return Err(format!("cannot start a thread: {error}"));
        }
    }
}

fn respond(answers: &Mutex<File>, id: u64, reply: Reply, payload: Vec<u8>) {
    let too_large = payload.len() > MAX_PAYLOAD as usize;
    let frame = if too_large {
        let error = format!(
            "{} bytes are more than the channel carries at once",
            payload.len()
        );
        Frame::from(Envelope {
            id,
            body: Reply::Err(error),
        })
    } else {
        Frame {
            message: Envelope { id, body: reply },
            payload,
        }
    };
    if let Err(error) = send(answers, &frame) {
        eprintln!("lab-agent: answer {id}: {error}");
    }
}

fn send<M: serde::Serialize>(writer: &Mutex<File>, frame: &Frame<M>) -> Result<(), FrameError> {
    frame.write_to(&mut *lock(writer))
}

fn perform(jobs: &Jobs, request: Request, payload: &[u8]) -> Result<(Answer, Vec<u8>), String> {
    let done = Ok((Answer::Done, Vec::new()));
    match request {
        Request::Spawn {
            program,
            arguments,
            environment,
        } => {
            let job = jobs.spawn(&program, &arguments, &environment)?;
            Ok((Answer::Started { job }, Vec::new()))
        }
        Request::Wait { job, timeout_ms } => {
            Ok(match jobs.wait(job, Duration::from_millis(timeout_ms))? {
                Some((
                    exit,
                    Output {
                        bytes,
                        stdout_length,
                    },
                )) => (
                    Answer::Ended {
                        exit,
                        stdout_length,
                    },
                    bytes,
                ),
                None => (Answer::Running, Vec::new()),
            })
        }
        Request::Output { job } => {
            let Output {
                bytes,
                stdout_length,
            } = jobs.output(job)?;
            Ok((Answer::Output { stdout_length }, bytes))
        }
        Request::Signal { job, signal } => {
            jobs.signal(job, signal)?;
            done
        }
        Request::ReadFile { path } => {
            let content = fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
            Ok((Answer::Content, content))
        }
        Request::WriteFile { path, mode } => {
            write_file(Path::new(&path), mode, payload)
                .map_err(|error| format!("{path}: {error}"))?;
            done
        }
        Request::LoadModule { path, parameters } => {
            machine::load_module(Path::new(&path), &parameters)?;
            done
        }
        Request::SetNvmeFeature {
            path,
            feature,
            value,
        } => {
            nvme::set_feature(Path::new(&path), feature, value)
                .map_err(|error| format!("{path}: {error}"))?;
            done
        }
        Request::WriteZeroes {
            path,
            offset,
            length,
        } => {
            write_zeroes(Path::new(&path), offset, length)
                .map_err(|error| format!("{path}: {error}"))?;
            done
        }
        Request::BpfObjects => {
            let objects = bpf::objects().map_err(|error| format!("bpf: {error}"))?;
            Ok((Answer::Content, objects.into_bytes()))
        }
        Request::PowerOff => done,
    }
}

/// A hole in a block device is made of zeroes that the device writes itself, or not
/// made at all (`blkdev_fallocate` in block/fops.c, `BLKDEV_ZERO_NOFALLBACK`).
fn write_zeroes(path: &Path, offset: u64, length: u64) -> std::io::Result<()> {
    let file = File::options().write(true).open(path)?;
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let [offset, length] = [offset, length].map(i64::try_from);
    let (Ok(offset), Ok(length)) = (offset, length) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    Ok(fallocate(file, mode, offset, length)?)
}

fn write_file(path: &Path, mode: u32, content: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content)?;
    // Files of the kernel's own file systems keep their modes.
    let in_kernel = ["/proc", "/sys"].iter().any(|root| path.starts_with(root));
    if in_kernel {
        Ok(())
    } else {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    }
}
