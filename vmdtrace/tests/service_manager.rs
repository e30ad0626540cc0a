//! What a service manager is told, by the real program. A replay serves as the
//! daemon does and needs no privilege.

#![expect(
    clippy::unwrap_used,
    reason = "tests may; clippy's own exemption leaves out their helpers"
)]

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Only a failure waits for this long.
const PATIENCE: Duration = Duration::from_secs(20);
const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/recordings/version-1.vmdtrace"
);

struct Service {
    child: Child,
    socket: UnixDatagram,
    _folder: tempfile::TempDir,
}

impl Service {
    fn start(watchdog: Option<Duration>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmdtrace"));
        command
            .args(["replay", RECORDING, "--web.listen-address=127.0.0.1:0"])
            .env("NOTIFY_SOCKET", &path)
            .env_remove("WATCHDOG_PID")
            .env_remove("WATCHDOG_USEC")
            .stderr(Stdio::null());
        if let Some(limit) = watchdog {
            command.env("WATCHDOG_USEC", limit.as_micros().to_string());
        }
        Self {
            child: command.spawn().unwrap(),
            socket,
            _folder: folder,
        }
    }

    /// The next message, without its time stamp.
    fn next(&self) -> String {
        let mut buffer = [0; 256];
        let length = self.socket.recv(&mut buffer).unwrap();
        let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
        let lines = text.lines().filter(|it| !it.starts_with("MONOTONIC_USEC="));
        lines.collect::<Vec<_>>().join(" ")
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn end(mut self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.next_but("WATCHDOG=1"), "STOPPING=1");
        assert!(self.child.wait().unwrap().success());
    }

    fn next_but(&self, passed_over: &str) -> String {
        let started = Instant::now();
        loop {
            let message = self.next();
            if message != passed_over {
                return message;
            }
            assert!(started.elapsed() < PATIENCE);
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn start_reload_and_stop_are_told() {
    let service = Service::start(None);
    assert_eq!(service.next(), "READY=1");
    for _ in 0..2 {
        service.signal(Signal::SIGHUP);
        assert_eq!(service.next(), "RELOADING=1");
        assert_eq!(service.next(), "READY=1");
    }
    // Nobody asked for a watchdog: nothing else was said.
    service.end();
}

#[test]
fn the_watchdog_is_fed_while_the_process_runs_and_not_while_it_is_stopped() {
    let service = Service::start(Some(Duration::from_millis(300)));
    assert_eq!(service.next(), "READY=1");
    for _ in 0..3 {
        assert_eq!(service.next(), "WATCHDOG=1");
    }
    service.signal(Signal::SIGSTOP);
    // What was sent before it stopped.
    service
        .socket
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let mut buffer = [0; 256];
    let sent = (0..10)
        .take_while(|_| service.socket.recv(&mut buffer).is_ok())
        .count();
    assert!(sent < 3, "{sent} messages of a process that is stopped");
    service.signal(Signal::SIGCONT);
    service.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(service.next(), "WATCHDOG=1");
    service.end();
}
