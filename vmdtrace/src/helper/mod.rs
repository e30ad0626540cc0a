//! `vmdtrace serve` is two processes. The server answers scrapes and holds no
//! capability; the helper, the same program started once more before the server
//! gives its capabilities up, loads the programs, attaches them (again when a
//! module comes) and does nothing else.
//!
//! The helper keeps the programs, their links, the kernel's list of kprobe events
//! and the rings. It hands the server descriptors of the maps, which the server
//! maps, and of the programs, whose statistics it reads. Afterwards the server makes
//! no BPF call.
//!
//! It is started anew, not forked, so that it has nothing of what the server read
//! in its memory and the server nothing of its own, and so that no lock of another
//! thread is held in it for ever.
//!
//! - [`protocol`]: what can be said, and its bounds.
//! - [`channel`]: messages and descriptors over a socket.
//! - [`capabilities`]: giving them up.
//! - [`process`]: the helper's side.
//! - [`client`]: the server's side.

pub mod capabilities;
pub mod channel;
pub mod client;
pub mod process;
pub mod protocol;

pub use client::Helper;
