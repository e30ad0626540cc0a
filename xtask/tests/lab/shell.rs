//! `cargo xtask lab shell` on a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nix::pty::{Winsize, openpty};

use crate::{XTASK, lab_test, leftovers};

/// Set-up and boot, on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(240);
const PROMPT: &str = "guest ~ # ";

/// The command on a terminal of its own.
struct Terminal {
    shell: Child,
    input: File,
    output: Receiver<Vec<u8>>,
    said: String,
}

impl Terminal {
    fn start(arguments: &[&str], temporary: &std::path::Path) -> Self {
        let size = Winsize {
            ws_row: 33,
            ws_col: 133,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).unwrap();
        let side = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        let shell = Command::new(XTASK)
            .args(["lab", "shell"])
            .args(arguments)
            .env("TMPDIR", temporary)
            .stdin(side(&pty.slave))
            .stdout(side(&pty.slave))
            .stderr(side(&pty.slave))
            .spawn()
            .unwrap();
        drop(pty.slave);
        let input = File::from(pty.master);
        let mut reader = input.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of a terminal is an error (EIO).
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            shell,
            input,
            output,
            said: String::new(),
        }
    }

    /// Waits until the terminal shows this, after what was awaited before.
    fn expect(&mut self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.said.find(text) {
                let rest = self.said.split_off(at + text.len());
                return std::mem::replace(&mut self.said, rest);
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.said.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => {
                    let _ = self.shell.kill();
                    panic!("{text:?} did not come ({error}):\n{}", self.said);
                }
            }
        }
    }

    fn send(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
    }

    /// What a command of the guest prints.
    fn run(&mut self, command: &str) -> String {
        // The mark is not in the echo of the command.
        self.send(&format!("{command}; echo en''d\r"));
        let text = self.expect("\nend\r\n");
        self.expect(PROMPT);
        text
    }

    /// Waits for its end; whether it ended well.
    fn ended(mut self) -> bool {
        let status = self.shell.wait().unwrap();
        while let Ok(bytes) = self.output.recv() {
            self.said.push_str(&String::from_utf8_lossy(&bytes));
        }
        assert!(status.success(), "{status}: {}", self.said);
        true
    }
}

fn a_person_works_in_a_guest() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = "--cpus 2 --id 201d --disks 2 --vectors 3 --native-disks 1";
    let arguments: Vec<_> = arguments.split(' ').collect();
    let mut terminal = Terminal::start(&arguments, folder.path());
    terminal.expect(PROMPT);
    let disks = terminal.run("cat /sys/class/nvme/nvme*/serial");
    for serial in ["VMDLABC00000", "VMDLABC00001", "NATIVE0000"] {
        assert!(disks.contains(serial), "{disks}");
    }
    assert!(terminal.run("stty size").contains("33 133"));
    assert!(terminal.run("fio --version").contains("fio-"));
    let metrics = terminal.run("wget -qO- 127.0.0.1:10973/metrics | grep vmdtrace_probe_attached");
    assert!(
        metrics.contains("vmdtrace_probe_attached{probe=\"nvme_sq\"} 1"),
        "{metrics}"
    );
    let answer = terminal.run("bpftrace -e 'BEGIN { printf(\"%d\\n\", 6 * 7); exit(); }'");
    assert!(answer.contains("\n42"), "{answer}");
    // Ctrl-C ends the guest's program, not the guest.
    terminal.send("sleep 6543\r");
    std::thread::sleep(Duration::from_millis(500));
    terminal.send("\u{3}");
    terminal.expect(PROMPT);
    terminal.send("exit\r");
    assert!(terminal.ended());
    assert_eq!(leftovers::of(folder.path()), Vec::<String>::new());
}

fn ctrl_a_x_ends_the_guest() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(&["--no-bpftrace", "--disks", "1"], folder.path());
    terminal.expect(PROMPT);
    terminal.send("\u{1}x");
    assert!(terminal.ended());
    assert_eq!(leftovers::of(folder.path()), Vec::<String>::new());
}

pub(crate) fn trials() -> Vec<Trial> {
    let tests: [(&str, fn()); 2] = [
        ("a_person_works_in_a_guest", a_person_works_in_a_guest),
        ("ctrl_a_x_ends_the_guest", ctrl_a_x_ends_the_guest),
    ];
    tests
        .into_iter()
        .map(|(name, test)| {
            lab_test(format!("shell::{name}"), move || {
                test();
                Ok(())
            })
        })
        .collect()
}
