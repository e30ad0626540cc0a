//! The terms that explain why two counts differ, made to be something else than 0.

use vmd_device::Service;
use xtask_lab::{Bound, CpuList, Engine, Load, interrupt};

use super::{Disturbed, REMAPPED, namespaces, stop, usual};
use crate::server::PATIENCE;

/// Turns before the term has to have been seen.
const TURNS: u32 = 10;

fn one_cpu(cpu: u32) -> CpuList {
    cpu.to_string()
        .parse()
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A queue is polled on a CPU that other queues interrupt: a completion that is
/// counted there when an interrupt comes makes the kernel skip the interrupt's own,
/// since 5.12 (`trace_call_bpf`, `__bpf_trace_run` in kernel/trace/bpf_trace.c).
pub(super) fn completions_that_interrupt_completions_are_missed(disturbed: &Disturbed) -> u64 {
    let vectors = disturbed.vectors().join(" ");
    disturbed.shell(&format!(
        "for irq in {vectors}; do echo 1 > /proc/irq/$irq/smp_affinity_list; done"
    ));
    let disks = namespaces(&disturbed.disks_of(REMAPPED));
    let load = |disk: usize, cpu, reads| Load {
        disks: vec![disks[disk].clone()],
        cpus: one_cpu(cpu),
        depth: 16,
        bound: Bound::Reads(reads),
    };
    let mut missed = 0;
    let mut completions = 0;
    for _ in 0..TURNS {
        let rise = disturbed.disturb_and_compare_lines("polling is interrupted", |disturbed| {
            let polled = load(0, 1, 4000).command_by(Engine::IoUring { polled: true });
            let polled = disturbed.spawn(&polled);
            let by_interrupt = disturbed.spawn(&load(1, 0, 2000).command());
            for fio in [polled, by_interrupt] {
                let output = fio.wait(PATIENCE).unwrap_or_else(|error| panic!("{error}"));
                assert!(output.success(), "{}", output.stderr_text());
            }
        });
        missed += rise.missed();
        completions += rise.all("vmdtrace_completions_outside_handler_total");
        // 5.10 runs the program inside the other.
        if missed > 0 || disturbed.series == "5.10" {
            return missed;
        }
    }
    panic!("no completion was missed beside {completions} that were polled");
}

/// The driver looks into a queue whose command is late with the queue's interrupt
/// disabled (drivers/nvme/host/pci.c, `nvme_poll_irqdisable`). A walk over the
/// vector's children that meets it then leaves it pending, and it is sent again by
/// software when it is enabled (kernel/irq/resend.c).
pub(super) fn children_disabled_while_walked_are_resent(disturbed: &Disturbed) -> u64 {
    disturbed.shorten_timeouts(REMAPPED);
    let slow = Service {
        latency: "2500ms".parse().unwrap(),
        ..usual()
    };
    let late = || {
        let scrape = disturbed.guest().scrape()?;
        Ok(scrape
            .sum("vmdtrace_timeouts_total", |_| true)
            .unwrap_or_default())
    };
    let mut resent = 0;
    let mut timeouts = 0;
    for _ in 0..TURNS {
        let rise = disturbed.disturb("commands are late", |disturbed| {
            let mut client = disturbed.client(REMAPPED);
            let before = late().unwrap_or_else(|error: xtask_lab::LabError| panic!("{error}"));
            client.set_service(Some(0), slow).unwrap();
            // Each that is late is another chance.
            let fio = disturbed.read(&disturbed.disks_of(REMAPPED)[..1], 128);
            interrupt::until("commands to be late", PATIENCE, || {
                Ok((late()? >= before + 100.0).then_some(()))
            })
            .unwrap_or_else(|error| panic!("{error}"));
            client.set_service(Some(0), usual()).unwrap();
            disturbed.await_io(300);
            stop(fio);
        });
        resent += rise.resent();
        timeouts += rise.all("vmdtrace_timeouts_total");
        if resent > 0 {
            return resent;
        }
    }
    panic!("no run was sent again in {timeouts} time-outs");
}
