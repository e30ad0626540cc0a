//! The finished program on this machine's own kernel.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{artifacts, check_with_promtool, lab_test};

fn serves_clean_metrics() {
    let mut daemon = Command::new(artifacts().vmdtrace.as_ref().unwrap())
        .args([
            "serve",
            "--web.listen-address",
            "127.0.0.1:0",
            "--also-lines",
            "virtio*",
            "--metrics.lines",
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(daemon.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let mut said = Vec::new();
    let address = log
        .by_ref()
        .find_map(|line| {
            let address = line
                .split_once("http://")
                .map(|(_, rest)| rest.trim_end_matches("/metrics").to_owned());
            said.push(line);
            address
        })
        .unwrap_or_else(|| panic!("never listened:\n{}", said.join("\n")));
    let mut stream = TcpStream::connect(&address).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, text) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    check_with_promtool(text);
    assert!(
        text.contains("vmdtrace_probe_attached{probe=\"irq_handler_entry\"} 1"),
        "{text}"
    );
    assert!(text.contains("vmdtrace_build_info{"), "{text}");
    // Whatever this kernel refuses is refused by it, and no fault of ours.
    assert!(!text.contains("state=\"broken\""), "{text}");

    kill(
        Pid::from_raw(daemon.id().try_into().unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    said.extend(log);
    let status = daemon.wait().unwrap();
    assert!(status.success(), "{status}:\n{}", said.join("\n"));
    let no_vmd = said
        .iter()
        .filter(|line| line.contains("no VMD controller found"))
        .count();
    let has_vmd = text.contains("vmdtrace_controller_info{");
    assert_eq!(no_vmd, usize::from(!has_vmd), "{}", said.join("\n"));
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![lab_test(
        "native::serves_metrics_that_promtool_accepts",
        || {
            serves_clean_metrics();
            Ok(())
        },
    )]
}
