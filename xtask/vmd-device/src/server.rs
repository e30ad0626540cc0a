//! Sockets, threads and the life of the server.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::Context;

use crate::config::Args;
use crate::connection::{Connection, lock};
use crate::device::Device;
use crate::protocol;

/// Serves one client until it goes away.
///
/// Both sockets are created before anything is said on stderr; the control
/// socket answers once the client has connected. They are removed at the end.
/// Fails if a socket cannot be created, or if the client breaks the protocol so
/// badly that the messages can no longer be told apart.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        socket,
        control,
        config,
        verbose,
    } = args;
    let (control_listener, _control_file) = listen(&control)?;
    let (listener, _socket_file) = listen(&socket)?;
    eprintln!(
        "vmd-device: {} disks behind VMD 8086:{} with {} vectors, waiting on {}",
        config.disks,
        config.id.name(),
        config.vectors,
        socket.display(),
    );
    let (stream, _) = listener
        .accept()
        .context("cannot accept the vfio-user client")?;
    let connection = Arc::new(Connection::new(stream));
    let device = Device::new(&config, connection.clone(), verbose)
        .context("cannot reserve memory for the disks; make them smaller with --disk-bytes")?;
    let device = Arc::new(Mutex::new(device));
    crate::control::serve(control_listener, Arc::clone(&device))
        .context("cannot start a thread")?;

    let served = serve(&connection, &device);
    let counters = lock(&device).counters();
    eprintln!(
        "vmd-device: client gone; {} completions, {} MSIs of disks, {} undelivered, {} rejected",
        counters.cqes(),
        counters.msis(),
        counters.undelivered_msis,
        counters.rejected,
    );
    served
}

fn serve(connection: &Connection, device: &Mutex<Device>) -> anyhow::Result<()> {
    while let Some(message) = connection.receive()? {
        let header = message.header;
        if header.is_reply() {
            // Nothing we send asks for a reply; QEMU reports failed writes all the same.
            if let Some(error) = header.error() {
                eprintln!("vmd-device: the client could not deliver an MSI: errno {error}");
            }
            continue;
        }
        let result = lock(device).handle(header.command, &message.body, message.fds);
        if !header.wants_reply() {
            continue;
        }
        let reply = match result {
            Ok(body) => protocol::reply(&header, &body),
            Err(errno) => protocol::error_reply(&header, errno),
        };
        if let Err(error) = connection.send_all(&reply) {
            // Its side may be closed already; then the next read says so.
            eprintln!("vmd-device: cannot reply: {error}");
        }
    }
    Ok(())
}

/// Removes a socket's file when the server ends.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Nothing is lost if somebody removed it before.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn listen(path: &Path) -> anyhow::Result<(UnixListener, SocketFile)> {
    let listener = UnixListener::bind(path).with_context(|| {
        let path = path.display();
        format!("cannot listen on {path}; if it is left from an earlier run, remove it")
    })?;
    Ok((listener, SocketFile(path.to_owned())))
}
