//! CPUs and interrupts of the host move.

use xtask_lab::is_vmd_action;

use super::{CPUS, Disturbed, REMAPPED, stop};

/// Turns of moving before a repeated run has to have been seen.
const TURNS: u32 = 10;

impl Disturbed {
    /// Interrupt numbers of the controllers' own vectors.
    pub(super) fn vectors(&self) -> Vec<String> {
        let counts = self
            .guest()
            .kernel_counts()
            .unwrap_or_else(|error| panic!("{error}"));
        let lines = counts.lines.iter();
        lines
            .filter(|(_, line)| is_vmd_action(&line.actions))
            .map(|(irq, _)| irq.to_string())
            .collect()
    }
}

/// Moves every vector from CPU to CPU while interrupts come. An interrupt that
/// arrives on the new CPU while the handler still runs on the old one makes that
/// one run it again (kernel/irq/chip.c, `handle_edge_irq`); the kernel counts both
/// as one. 7.3 waits instead.
pub(super) fn affinities_move(disturbed: &Disturbed) -> u64 {
    let script = format!(
        "i=0; while [ $i -lt 100 ]; do
            for cpu in 1 2 0; do
                for irq in {}; do echo $cpu > /proc/irq/$irq/smp_affinity_list; done
            done
            i=$((i + 1))
        done",
        disturbed.vectors().join(" ")
    );
    let mut repeated = 0;
    let mut interrupts = 0;
    for _ in 0..TURNS {
        let rise = disturbed.disturb_and_compare_lines("vectors move", |disturbed| {
            // Handlers that have much to do, so that something comes meanwhile.
            let fio = disturbed.read(&disturbed.disks_of(REMAPPED), 64);
            disturbed.await_io(100);
            disturbed.shell(&script);
            stop(fio);
        });
        repeated += rise.repeated();
        interrupts += rise.all("vmdtrace_hardware_interrupts_total");
        if repeated > 0 || disturbed.series == "7.3" {
            return repeated;
        }
    }
    panic!("no run was repeated in {interrupts} interrupts");
}

/// A CPU goes, with the interrupts and the readers that it had, and comes back.
pub(super) fn cpus_go_and_come(disturbed: &Disturbed) {
    let last = CPUS - 1;
    disturbed.disturb_and_compare_lines("a CPU goes and comes", |disturbed| {
        for online in [0, 1, 0, 1] {
            disturbed.shell(&format!(
                "echo {online} > /sys/devices/system/cpu/cpu{last}/online"
            ));
            disturbed.await_io(300);
        }
    });
}
