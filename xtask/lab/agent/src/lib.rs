//! What the host and the guest of the virtual server say to each other.
//!
//! Everything runs over one virtio-serial port. The guest begins with
//! [`Hello`]; after that the host sends [`Request`]s and the guest answers each
//! with a [`Response`] of the same id, in any order. Bytes (output of programs,
//! contents of files) travel beside the JSON as a frame's payload.

mod frame;
mod message;

pub use frame::{Frame, FrameError, MAX_PAYLOAD};
pub use message::{Answer, Envelope, Exit, Hello, Reply, Request, Response};

/// Name of the virtio-serial port, as QEMU sets it and sysfs shows it.
pub const PORT_NAME: &str = "vmdtrace.agent.0";
/// In the initramfs: the modules that the agent loads before it can talk to the
/// host, one path a line, in order.
pub const BOOT_MODULES: &str = "/etc/lab/boot-modules";
