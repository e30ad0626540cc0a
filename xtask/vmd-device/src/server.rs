//! Sockets, threads and the life of the server.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::clock::Clock;
use crate::config::Args;
use crate::connection::Connection;
use crate::device::Device;
use crate::protocol;
use crate::scheduler::Scheduler;

/// Serves one client until it goes away.
///
/// Both sockets are created before anything is said on stderr; the control
/// socket answers once the client has connected. They are removed at the end,
/// and when SIGTERM or SIGINT ends the process, which they do at any time.
/// Fails if there is no such device, if a socket cannot be created, or if the client breaks the protocol so
/// badly that the messages can no longer be told apart.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        socket,
        control,
        config,
        verbose,
    } = args;
    config.check()?;
    let (control_listener, _control_file) = listen(&control)?;
    let (listener, _socket_file) = listen(&socket)?;
    remove_at_signals(vec![control.clone(), socket.clone()])
        .context("cannot handle SIGTERM and SIGINT")?;
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
    let device = Device::new(&config, connection.clone(), Clock::start(), verbose)
        .context("cannot reserve memory for the disks; make them smaller with --disk-bytes")?;
    let device = Arc::new(Scheduler::new(device));
    crate::control::serve(control_listener, Arc::clone(&device))
        .context("cannot start a thread")?;

    let thread = Arc::clone(&device);
    let thread = std::thread::Builder::new()
        .name("scheduler".to_owned())
        .spawn(move || thread.run())
        .context("cannot start a thread")?;
    let served = serve(&connection, &device);
    device.end();
    if thread.join().is_err() {
        eprintln!("vmd-device: the scheduler ended early");
    }
    let counters = device.with(|device| device.counters());
    eprintln!(
        "vmd-device: client gone; {} completions, {} MSIs of disks, {} undelivered, {} rejected",
        counters.cqes(),
        counters.msis(),
        counters.undelivered_msis,
        counters.rejected,
    );
    served
}

pub(crate) fn serve(connection: &Connection, device: &Scheduler) -> anyhow::Result<()> {
    while let Some(message) = connection.receive()? {
        let header = message.header;
        if header.is_reply() {
            // Nothing we send asks for a reply; QEMU reports failed writes all the same.
            if let Some(error) = header.error() {
                eprintln!("vmd-device: the client could not deliver an MSI: errno {error}");
            }
            continue;
        }
        let result =
            device.with(|device| device.handle(header.command, &message.body, message.fds));
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

/// Lets SIGTERM and SIGINT end the process as they do by default, but without
/// leaving `files`.
fn remove_at_signals(files: Vec<PathBuf>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let end = move || {
        if let Some(signal) = signals.forever().next() {
            drop(files.into_iter().map(SocketFile).collect::<Vec<_>>());
            if let Err(error) = emulate_default_handler(signal) {
                eprintln!("vmd-device: cannot end: {error}");
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(end)
        .map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread::JoinHandle;

    use crate::config::Config;
    use crate::control::Client;

    fn start(directory: &Path) -> (JoinHandle<anyhow::Result<()>>, UnixStream, PathBuf) {
        let (socket, control) = (directory.join("socket"), directory.join("control"));
        let config = Config {
            disks: 1,
            disk_bytes: 4096,
            ..Config::default()
        };
        let args = Args {
            socket: socket.clone(),
            control: control.clone(),
            config,
            verbose: false,
        };
        let server = std::thread::spawn(move || run(args));
        let client = loop {
            match UnixStream::connect(&socket) {
                Ok(client) => break client,
                Err(_) => assert!(!server.is_finished(), "the server ended before it listened"),
            }
            std::thread::yield_now();
        };
        (server, client, control)
    }

    fn request(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
        let mut message = vec![1, 0];
        message.extend_from_slice(&command.to_le_bytes());
        message.extend_from_slice(&(16 + body.len() as u32).to_le_bytes());
        message.extend_from_slice(&flags.to_le_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(body);
        message
    }

    #[test]
    fn a_client_is_served_until_it_leaves() {
        let directory = tempfile::tempdir().unwrap();
        let (server, mut client, control) = start(directory.path());
        // A refused request without reply, then one that is answered.
        client.write_all(&request(99, 0x10, &[])).unwrap();
        client
            .write_all(&request(protocol::command::DEVICE_GET_INFO, 0, &[0; 16]))
            .unwrap();
        let mut reply = [0; 32];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..12], [1, 0, 4, 0, 32, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(
            Client::connect(&control)
                .unwrap()
                .counters()
                .unwrap()
                .rejected,
            1
        );
        drop(client);
        server.join().unwrap().unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_message_that_cannot_be_delimited_ends_the_server_with_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let (server, mut client, _) = start(directory.path());
        let mut message = request(1, 0, &[]);
        message[4..8].copy_from_slice(&3_u32.to_le_bytes());
        client.write_all(&message).unwrap();
        let error = server.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("message of 3 bytes"), "{error}");
    }

    #[test]
    fn an_existing_socket_is_not_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        std::fs::write(&path, "").unwrap();
        let error = listen(&path).unwrap_err().to_string();
        assert!(error.contains("remove it"), "{error}");
    }
}
