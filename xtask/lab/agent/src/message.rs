//! The messages.

use serde::{Deserialize, Serialize};

/// The guest's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// `uname -r` of the running kernel.
    pub kernel_release: String,
}

/// Something with the id that ties an answer to its request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope<T> {
    pub id: u64,
    pub body: T,
}

/// What the host may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Starts a program in a process group of its own; its output goes to files.
    /// Answered by [`Answer::Started`].
    Spawn {
        program: String,
        arguments: Vec<String>,
        environment: Vec<(String, String)>,
    },
    /// Waits until a job ends, at most so long. Answered by [`Answer::Ended`],
    /// with what it wrote as the payload and the job then forgotten, or by
    /// [`Answer::Running`].
    Wait { job: u64, timeout_ms: u64 },
    /// What a job wrote so far: [`Answer::Output`].
    Output { job: u64 },
    /// Sends a signal to the job's process group; to one that has ended, nothing.
    Signal { job: u64, signal: i32 },
    /// The payload of the answer is the file's content.
    ReadFile { path: String },
    /// The payload is the content; folders above it are made.
    WriteFile { path: String, mode: u32 },
    /// Loads a kernel module; one that is loaded already is no error.
    LoadModule { path: String, parameters: String },
    /// Sets a feature of the NVMe controller with this character device.
    SetNvmeFeature {
        path: String,
        feature: u8,
        value: u32,
    },
    /// Makes bytes of a block device zero by a command for that; not where the device
    /// has none.
    WriteZeroes {
        path: String,
        offset: u64,
        length: u64,
    },
    /// The payload of the answer lists the kernel's eBPF programs, maps and links,
    /// one `KIND ID` a line.
    BpfObjects,
    /// Switches the machine off; answered before it is done.
    PowerOff,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(formatter, "exit status {code}"),
            Self::Signal(signal) => write!(formatter, "killed by signal {signal}"),
        }
    }
}

/// What the guest answers; where bytes belong to it they are the payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Started {
        job: u64,
    },
    Running,
    /// The payload is standard output, so many bytes, then standard error.
    Output {
        stdout_length: u64,
    },
    /// As [`Answer::Output`].
    Ended {
        exit: Exit,
        stdout_length: u64,
    },
    /// The payload is the content of the file.
    Content,
}

/// An answer, or why there is none, as text for a person.
pub type Reply = Result<Answer, String>;
/// A reply on its way.
pub type Response = Envelope<Reply>;
