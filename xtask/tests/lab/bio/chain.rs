//! How a vector that is served elsewhere starves the cache: the interrupt comes on
//! one CPU, the request completes in softirq on the CPU that submitted it
//! (block/blk-mq.c `blk_mq_complete_need_ipi`: the two share no cache), and a bio
//! freed in softirq goes to the slab (block/bio.c `bio_put_percpu_cache`), so that
//! the next allocation finds the cache empty.

use super::daemon::Window;
use super::guest::BioGuest;
use super::loads::{Expected, Regime, WAYS};
use super::oracle::Counts;
use super::{DEPTH, READS, Table, read};

/// The disk behind the VMD that remaps, and the loads' CPU as a mask.
const DISK: &str = "VMDLABR0000";
const CPU_MASK: &str = "2";
const OTHER_CPU_MASK: &str = "1";

/// Lets the VMD's vectors interrupt this CPU. A vector moves with its next interrupt,
/// whose handler may take many completions where it still is (nvme_irq goes on while
/// there are any): that one is waited for.
fn pin(guest: &BioGuest, mask: &str) {
    let disk = guest.namespace(DISK);
    guest.run(&format!(
        "set -e
        path=$(readlink -f /sys/block/{disk}/device/device)
        [ -e $path ] || path=$(readlink -f /sys/block/{disk}/device)
        vmd=$(echo $path | sed 's#/pci1[0-9a-f]*:.*##')
        for irq in $vmd/msi_irqs/*; do
            echo {mask} > /proc/irq/${{irq##*/}}/smp_affinity
        done
        taskset {CPU_MASK} dd if=/dev/{disk} of=/dev/null bs=4k count=8 iflag=direct"
    ));
}

/// Softirqs that complete requests on the loads' CPU.
fn block_softirqs(guest: &BioGuest) -> u64 {
    let text = guest.run("grep BLOCK: /proc/softirqs");
    text.split_whitespace().nth(2).unwrap().parse().unwrap()
}

pub(crate) fn completions_elsewhere_starve_the_cache(guest: &mut BioGuest, table: &Table) {
    for (mask, load, here) in [
        (CPU_MASK, "vector here", true),
        (OTHER_CPU_MASK, "vector elsewhere", false),
    ] {
        pin(guest, mask);
        let (before, softirqs) = (guest.read(), block_softirqs(guest));
        let reads = read(guest, &WAYS[0], guest.namespace(DISK).to_owned());
        let (after, softirqs) = (guest.read(), block_softirqs(guest) - softirqs);
        let counts = after.oracle.since(&before.oracle);
        let window = Window {
            before: &before.daemon,
            after: &after.daemon,
        };

        let regime = Regime::of(guest.series);
        let expected = match regime {
            Regime::Absent => Expected::NoCache,
            Regime::PolledOnly => Expected::NoFlag,
            _ if here => Expected::Hits,
            _ => Expected::Starved,
        };
        let mut wrong = wrong_oracle(expected, here, regime, softirqs, &counts);
        if reads != READS {
            wrong.push(format!("fio read {reads} times"));
        }
        wrong.extend(window.compare(&counts, &guest.named, expected, reads));
        // In 5.10 the other CPU's call completes the request itself: in its interrupt,
        // or in the idle task, which looks for such calls (kernel/smp.c
        // `flush_smp_call_function_from_idle`).
        let contexts: &[&str] = match (here, regime) {
            (true, _) => &["hardirq"],
            (false, Regime::Absent) => &["hardirq", "task"],
            (false, _) => &["softirq"],
        };
        let freed = contexts.iter().map(|it| window.freed_in(it)).sum();
        if !most(freed) {
            wrong.push(format!("vmdtrace: {freed} freed in {contexts:?}"));
        }
        let (starved, softirq) = (
            expected == Expected::Starved,
            window.freed_to_slab_in_softirq(),
        );
        if starved != most(softirq) {
            wrong.push(format!("vmdtrace: {softirq} freed to the slab in softirq"));
        }
        let far = window.completed_far();
        let as_expected = if here { few } else { most };
        if !as_expected(far) {
            wrong.push(format!("vmdtrace: {far} completions far from the reader"));
        }
        table.add(
            guest,
            load,
            reads,
            (counts, window.untold()),
            expected,
            wrong,
        );
    }
}

fn few(count: u64) -> bool {
    count * 100 <= READS
}

fn most(count: u64) -> bool {
    count * 100 >= READS * 99
}

/// What in bpftrace's and the kernel's own counts is not as expected.
fn wrong_oracle(
    expected: Expected,
    here: bool,
    regime: Regime,
    softirqs: u64,
    counts: &Counts,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut require = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    let all = counts.total();
    require(all >= READS, format!("{all} allocations"));
    let (slab, freed) = (counts.slab.unwrap_or(all), counts.freed);
    let as_expected = if expected == Expected::Hits {
        few
    } else {
        most
    };
    require(as_expected(slab), format!("{slab} bios from the slab"));
    require(as_expected(freed), format!("{freed} bios freed to it"));
    // One takes at most what is in flight. In 5.10 there is none: see
    // `__blk_mq_complete_request_remote`.
    let as_expected = if here || regime == Regime::Absent {
        few(softirqs)
    } else {
        softirqs >= READS / u64::from(DEPTH)
    };
    require(
        as_expected,
        format!("{softirqs} softirqs complete requests"),
    );
    wrong
}
