//! The daemon itself is stopped, killed and started again.

use std::collections::BTreeSet;

use xtask_lab::{Guest, Signal, interrupt};

use super::{CPUS, Disturbed, REMAPPED, stop, watch};
use crate::server::{PATIENCE, Server};

/// It sleeps while a disk is reset and others are read: nothing is lost, since the
/// programs count without it.
pub(super) fn it_is_stopped_and_goes_on(disturbed: &Disturbed) {
    disturbed.readings_around("the daemon is stopped for a while", |disturbed| {
        let daemon = &disturbed.server.daemon;
        daemon.signal(Signal::SIGSTOP).unwrap();
        disturbed.await_io(300);
        let disk = disturbed.disks_of(REMAPPED).swap_remove(0).name;
        disturbed.shell(&format!("echo 1 > /sys/class/nvme/{disk}/reset_controller"));
        disturbed.await_io(300);
        daemon.signal(Signal::SIGCONT).unwrap();
    });
}

/// Kprobe events of ours in the kernel's list, which outlive their process.
fn kprobe_events(guest: &Guest) -> BTreeSet<String> {
    let list = guest
        .read_file("/sys/kernel/tracing/kprobe_events")
        .unwrap_or_else(|error| panic!("{error}"));
    let list = String::from_utf8_lossy(&list);
    let ours = list.lines().filter(|line| line.contains("vmdtrace/"));
    ours.map(str::to_owned).collect()
}

/// Nothing is left that was not there before the daemon's first start. The kernel
/// frees it a little later.
fn await_nothing_left(guest: &Guest, before: &BTreeSet<String>) {
    let mut left = Vec::new();
    interrupt::until("the daemon's eBPF objects to go", PATIENCE, || {
        left = guest.bpf_objects()?.difference(before).cloned().collect();
        Ok(left.is_empty().then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{left:?}"));
}

/// One CPU is left where functions are hooked and unhooked under load: with more, an
/// emulated 7.3 once died of it (docs/kernels.md, "Hooking functions under load").
fn set_others_online(disturbed: &Disturbed, online: bool) {
    if disturbed.series != "7.3" {
        return;
    }
    for cpu in 1..CPUS {
        disturbed.shell(&format!(
            "echo {} > /sys/devices/system/cpu/cpu{cpu}/online",
            u8::from(online)
        ));
    }
}

/// Told to make none, the daemon does not touch the list, says what is switched off, and
/// does all else.
fn without_kprobes(guest: Guest, events: &BTreeSet<String>) -> Guest {
    let (Server { guest, daemon }, ready) = Server::serve_with(guest, &["--no-kprobes"]);
    ready.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(kprobe_events(&guest), *events);
    let scrape = guest.scrape().unwrap_or_else(|error| panic!("{error}"));
    let mut off = 0;
    for it in scrape.series("vmdtrace_probe_info") {
        let by_kprobe = it.label("mechanism").contains("kprobe");
        let (state, reason) = (it.label("state"), it.label("reason"));
        let expected = if by_kprobe { "blocked" } else { "attached" };
        // The driver's handlers only wake threads here.
        if it.label("probe") == "handler_completions" {
            continue;
        }
        assert_eq!(state, expected, "{it:?}");
        assert!(!by_kprobe || reason.contains("--no-kprobes"), "{it:?}");
        off += u32::from(by_kprobe);
    }
    assert!(off >= 2, "{off}");
    for absent in ["vmdtrace_timeouts_total", "vmdtrace_lost_interrupts_total"] {
        assert_eq!(scrape.sum(absent, |_| true), None, "{absent}");
    }
    assert!(scrape.sum("vmdtrace_completions_total", |_| true).is_some());
    let output = daemon
        .stop(PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(output.success(), "{}", output.stderr_text());
    guest
}

/// Killed under load: programs, links and maps go with it. Its kprobe events stay until
/// the next start, which removes them, and its own when it is stopped.
pub(super) fn it_is_killed_and_started_again(disturbed: Disturbed) {
    let fio = disturbed.load();
    let made = kprobe_events(disturbed.guest());
    assert!(!made.is_empty());
    set_others_online(&disturbed, false);
    let Disturbed {
        server: Server { guest, daemon },
        series,
        objects,
    } = disturbed;
    assert!(!guest.bpf_objects().unwrap().is_subset(&objects));
    daemon.signal(Signal::SIGKILL).unwrap();
    daemon.wait(PATIENCE).unwrap();
    await_nothing_left(&guest, &objects);
    assert_eq!(kprobe_events(&guest), made);

    let guest = without_kprobes(guest, &made);
    let (server, ready) = Server::serve(guest);
    ready.unwrap_or_else(|error| panic!("{error}"));
    let disturbed = Disturbed {
        server,
        series,
        objects,
    };
    let again = kprobe_events(disturbed.guest());
    assert!(!again.is_empty() && again.is_disjoint(&made), "{again:?}");
    set_others_online(&disturbed, true);
    watch::during(disturbed.guest(), || disturbed.await_io(300));
    stop(fio);
    disturbed.is_exact("after a kill and a start under load");

    let Disturbed {
        server: Server { guest, daemon },
        objects,
        ..
    } = disturbed;
    let output = daemon.stop(PATIENCE).unwrap();
    assert!(output.success(), "{}", output.stderr_text());
    await_nothing_left(&guest, &objects);
    assert_eq!(kprobe_events(&guest), BTreeSet::new());
    guest.power_off().unwrap_or_else(|error| panic!("{error}"));
}
