//! How a vector that is served elsewhere starves the cache: the interrupt comes on
//! one CPU, the request completes in softirq on the CPU that submitted it
//! (block/blk-mq.c `blk_mq_complete_need_ipi`: the two share no cache), and a bio
//! freed in softirq goes to the slab (block/bio.c `bio_put_percpu_cache`), so that
//! the next allocation finds the cache empty.

use super::guest::BioGuest;
use super::loads::{Expected, Regime, WAYS};
use super::oracle::Counts;
use super::{DEPTH, READS, Table, read};

/// The disk behind the VMD that remaps, and the loads' CPU as a mask.
const DISK: &str = "VMDLABR0000";
const CPU_MASK: &str = "2";
const OTHER_CPU_MASK: &str = "1";

/// Lets the VMD's vectors interrupt this CPU.
fn pin(guest: &BioGuest, mask: &str) {
    let disk = guest.namespace(DISK);
    guest.run(&format!(
        "set -e
        path=$(readlink -f /sys/block/{disk}/device/device)
        [ -e $path ] || path=$(readlink -f /sys/block/{disk}/device)
        vmd=$(echo $path | sed 's#/pci1[0-9a-f]*:.*##')
        for irq in $vmd/msi_irqs/*; do
            echo {mask} > /proc/irq/${{irq##*/}}/smp_affinity
        done"
    ));
}

/// Softirqs that complete requests on the loads' CPU.
fn block_softirqs(guest: &BioGuest) -> u64 {
    let text = guest.run("grep BLOCK: /proc/softirqs");
    text.split_whitespace().nth(2).unwrap().parse().unwrap()
}

fn measure(guest: &mut BioGuest, mask: &str) -> (u64, Counts, u64) {
    pin(guest, mask);
    guest.server.at_rest();
    let (before, softirqs) = (guest.oracle.read(), block_softirqs(guest));
    let reads = read(guest, &WAYS[0], guest.namespace(DISK).to_owned());
    guest.server.at_rest();
    let counts = guest.oracle.read().since(&before);
    (reads, counts, block_softirqs(guest) - softirqs)
}

pub(crate) fn completions_elsewhere_starve_the_cache(guest: &mut BioGuest, table: &Table) {
    let regime = Regime::of(guest.series);
    let caches = matches!(regime, Regime::OptIn | Regime::DefaultOn);
    for (mask, load, here) in [
        (CPU_MASK, "vector here", true),
        (OTHER_CPU_MASK, "vector elsewhere", false),
    ] {
        let (reads, counts, softirqs) = measure(guest, mask);
        let mut wrong = Vec::new();
        if reads != READS {
            wrong.push(format!("fio read {reads} times"));
        }
        if counts.total() < READS {
            wrong.push(format!("{} allocations", counts.total()));
        }
        let few = |count: u64| count * 100 <= READS;
        let most = |count: u64| count * 100 >= READS * 99;
        let cached = caches && here;
        // Where the kernel does not tell the slab nothing is cached.
        let slab = counts.slab.unwrap_or(counts.total());
        let right = if cached { few(slab) } else { most(slab) };
        if !right {
            wrong.push(format!("{slab} bios from the slab"));
        }
        let right = if cached {
            few(counts.freed)
        } else {
            most(counts.freed)
        };
        if !right {
            wrong.push(format!("{} bios freed to it", counts.freed));
        }
        // One takes at most what is in flight. In 5.10 the other CPU's interrupt
        // completes the request itself (`__blk_mq_complete_request_remote`).
        let right = if here || regime == Regime::Absent {
            few(softirqs)
        } else {
            softirqs >= READS / u64::from(DEPTH)
        };
        if !right {
            wrong.push(format!("{softirqs} softirqs complete requests"));
        }
        let expected = match regime {
            Regime::Absent => Expected::NoCache,
            Regime::PolledOnly => Expected::NoFlag,
            _ if here => Expected::Hits,
            _ => Expected::Starved,
        };
        table.add(guest, load, reads, counts, expected, wrong);
    }
}
