use super::*;
use crate::snapshot::recording::synthetic::Server;
use crate::snapshot::{ProbeState, probes};

fn two() -> (Snapshot, Snapshot) {
    let mut server = Server::new(2, 2, 3);
    server.run(2);
    let earlier = server.snapshot();
    server.run(3);
    (earlier, server.snapshot())
}

fn line<'a>(window: &'a Window, action: &str) -> &'a LineCounts {
    let mut lines = window.counters.lines.iter();
    lines.find(|line| line.action == action).unwrap()
}

#[test]
fn counters_are_differences_and_the_rest_is_of_the_end() {
    let (earlier, later) = two();
    let window = Window::between(&earlier, &later).unwrap();
    assert_eq!(window.elapsed_ns, later.taken_ns - earlier.taken_ns);
    assert_eq!(window.changes, []);
    assert!(window.counted.completions);
    let find = |snapshot: &Snapshot| {
        let mut lines = snapshot.counters.lines.iter();
        lines.find(|line| line.action == "nvme1q2").unwrap().clone()
    };
    let (before, after, between) = (find(&earlier), find(&later), line(&window, "nvme1q2"));
    assert!(between.counts.completions > 0);
    assert_eq!(
        between.counts.completions,
        after.counts.completions - before.counts.completions
    );
    assert_eq!(
        between.counts.self_ns,
        after.counts.self_ns - before.counts.self_ns
    );
    assert_eq!(between.counts.repeated_runs, Some(0));
    assert_eq!(between.disk, after.disk);
    let (before, after) = (earlier.activity.unwrap(), later.activity.unwrap());
    let between = window.activity.unwrap();
    assert_eq!(
        between.disks[0].reads,
        after.disks[0].reads - before.disks[0].reads
    );
    assert_eq!(between.disks[0].in_flight, after.disks[0].in_flight);
    assert_eq!(
        between.cpus[1].idle[2].entries,
        after.cpus[1].idle[2].entries - before.cpus[1].idle[2].entries
    );
    assert_eq!(
        between.softirqs["RCU"],
        after.softirqs["RCU"] - before.softirqs["RCU"]
    );
}

#[test]
fn nothing_between_is_zero() {
    let (earlier, _) = two();
    let mut later = earlier.clone();
    later.taken_ns += 1;
    let window = Window::between(&earlier, &later).unwrap();
    let counts = window.counters;
    assert!(
        counts
            .lines
            .iter()
            .all(|it| it.runs() + it.counts.self_ns + it.counts.completions == 0)
    );
    assert!(
        counts
            .cpus
            .iter()
            .all(|it| it.interrupt_ns + it.depth0_runs == 0)
    );
}

#[test]
fn the_wrong_order_a_restart_and_a_reset_are_told_apart() {
    let (earlier, later) = two();
    let error = |earlier: &Snapshot, later: &Snapshot| {
        Window::between(earlier, later).unwrap_err().to_string()
    };
    assert!(error(&later, &earlier).contains("wrong order"));
    assert!(error(&later, &later).contains("wrong order"));
    let mut restarted = later.clone();
    restarted.counting_since_ns = Some(1);
    assert_eq!(
        Window::between(&earlier, &restarted),
        Err(WindowError::Restarted)
    );
    // Where it is not known when counting began, the counters tell.
    let mut reset = later.clone();
    reset.counting_since_ns = None;
    reset.counters.lines[4].counts.completions = 1;
    let text = error(&earlier, &reset);
    assert!(
        text.starts_with("a counter of interrupt 28 (nvme0q1) went back from "),
        "{text}"
    );
    let mut reset = later.clone();
    reset.counters.cpus[1].interrupt_ns = 0;
    assert!(error(&earlier, &reset).starts_with("a counter of CPU 1 went back from"));
    let mut reset = later.clone();
    reset.probes[1].missed_runs = Some(0);
    let mut missed = earlier.clone();
    missed.probes[1].missed_runs = Some(1);
    assert!(error(&missed, &reset).starts_with("a counter of the probe irq_handler_exit"));
    let mut vanished = later.clone();
    vanished
        .counters
        .lines
        .retain(|line| line.action != "nvme1q0");
    assert!(error(&earlier, &vanished).starts_with("interrupt 30 (nvme1q0) is in the first"));
    let mut vanished = later;
    vanished.counters.cpus.pop();
    assert!(error(&earlier, &vanished).starts_with("CPU 1 is in the first"));
}

#[test]
fn what_comes_and_goes_is_told() {
    let (mut earlier, mut later) = two();
    earlier
        .counters
        .lines
        .retain(|line| line.action != "nvme1q1");
    let came = later.topology.disks.pop().unwrap();
    earlier.topology.disks.remove(0);
    later.topology.disks.remove(0);
    later.topology.disks.push(crate::host::topology::Disk {
        name: "nvme9".to_owned(),
        ..came
    });
    later.topology.controllers[0].mode = Mode::Bypass;
    let before = earlier.activity.as_mut().unwrap();
    let after = later.activity.as_mut().unwrap();
    before.cpus[0].cpu = 7;
    after.disks[0].reads = 0;
    after.vectors[1].cpus = Some("1-2".to_owned());
    later.probes[2].state = ProbeState::Broken;
    let window = Window::between(&earlier, &later).unwrap();
    let told: Vec<String> = window.changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "controller 0000:97:00.5 went from remap to bypass",
            "disk nvme9 came",
            "disk nvme1 went",
            "interrupt 31 (nvme1q1) came",
            "CPU 0 came online",
            "CPU 7 went offline",
            "the kernel's counts of nvme0n1 began anew",
            "interrupt 25 moved from CPUs 1 to 1-2",
            "probe nvme_sq went from attached to broken",
        ]
    );
    // All of what the new line has counted was counted in between.
    let mut lines = later.counters.lines.iter();
    let new = lines.find(|line| line.action == "nvme1q1").unwrap();
    assert_eq!(line(&window, "nvme1q1"), new);
    assert!(!window.counted.completions);
    let activity = window.activity.unwrap();
    assert_eq!(activity.cpus.len(), 1);
    assert_eq!(activity.disks.len(), 1);
}

/// The owner of a line may be known only after it has run.
#[test]
fn a_line_whose_owner_becomes_known_is_the_same_line() {
    let (mut earlier, later) = two();
    let line_before = &mut earlier.counters.lines[4];
    (line_before.controller, line_before.disk, line_before.path) = (None, None, None);
    let counted = line_before.counts.completions;
    let window = Window::between(&earlier, &later).unwrap();
    let between = line(&window, "nvme0q1");
    assert_eq!(
        between.counts.completions,
        later.counters.lines[4].counts.completions - counted
    );
    assert_eq!(window.changes, []);
}

/// A queue's number and name that another disk has now: both keep their counts.
#[test]
fn a_line_of_two_owners_is_two() {
    let (earlier, mut later) = two();
    let mut other = later.counters.lines[4].clone();
    other.path = Some(DiskPath::Direct);
    other.controller = None;
    other.counts.completions = 5;
    later.counters.lines.push(other);
    let window = Window::between(&earlier, &later).unwrap();
    let counts: Vec<u64> = window
        .counters
        .lines
        .iter()
        .filter(|line| line.action == "nvme0q1")
        .map(|line| line.counts.completions)
        .collect();
    let first =
        later.counters.lines[4].counts.completions - earlier.counters.lines[4].counts.completions;
    assert_eq!(counts, [first, 5]);
    assert_eq!(window.changes.len(), 1);
}

#[test]
fn the_coarser_detail_counts() {
    let (earlier, later) = two();
    let whole = Window::between(&earlier, &later).unwrap();
    let sums = Window::between(&earlier.sums(), &later).unwrap();
    assert_eq!(sums.detail, Detail::Sums);
    assert_eq!(
        sums,
        Window::between(&earlier.sums(), &later.sums()).unwrap()
    );
    let of_disk = |window: &Window| -> u64 {
        let lines = window.counters.lines.iter();
        lines
            .filter(|it| it.disk.as_deref() == Some("nvme1"))
            .map(|it| it.counts.completions)
            .sum()
    };
    assert_eq!(of_disk(&sums), of_disk(&whole));
    assert!(sums.activity.unwrap().cpus.is_empty());
}

#[test]
fn bios_are_subtracted_by_set_and_by_destination() {
    use crate::snapshot::bio::{
        BioAllocations, BioContext, BioDestination, BioFrees, BioPurpose, BioRegime,
    };
    let allocations = |set: &str, hits_own| BioAllocations {
        set: set.to_owned(),
        purpose: BioPurpose::Block,
        hits_own,
        hits_splice: 0,
        misses_empty: 1,
        misses_below_threshold: 0,
        misses_reserve: 0,
        without_cache: 0,
        with_many_vectors: 0,
        without_flag: 0,
        failed: 0,
        ambiguous: 0,
        unpaired: 0,
    };
    let frees = |count| BioFrees {
        destination: BioDestination::OwnList,
        context: BioContext::Task,
        count,
    };
    let (mut earlier, mut later) = two();
    earlier.counters.bio = BioCounts {
        regime: BioRegime::Unknown,
        allocations: vec![allocations("a", 5)],
        kmallocs: 3,
        frees: vec![frees(2)],
    };
    later.counters.bio = BioCounts {
        regime: BioRegime::OptIn,
        allocations: vec![allocations("b", 7), allocations("a", 9)],
        kmallocs: 4,
        frees: vec![frees(10)],
    };
    let bio = Window::between(&earlier, &later).unwrap().counters.bio;
    assert_eq!(bio.regime, BioRegime::OptIn);
    assert_eq!(bio.allocations[0], allocations("b", 7));
    assert_eq!(bio.allocations[1].hits_own, 4);
    assert_eq!(bio.allocations[1].misses_empty, 0);
    assert_eq!((bio.kmallocs, bio.frees[0].count), (1, 8));
    later.counters.bio.kmallocs = 0;
    let error = Window::between(&earlier, &later).unwrap_err().to_string();
    assert!(
        error.starts_with("the count of bios of no set went back"),
        "{error}"
    );
}

#[test]
fn idle_and_iowait_are_certain_as_a_sum() {
    let times = |idle, iowait, user| CpuTimes {
        idle,
        iowait,
        user,
        ..CpuTimes::default()
    };
    let difference = |earlier: &CpuTimes, later: &CpuTimes| cpu_times(later, earlier);
    assert_eq!(
        difference(&times(10, 5, 1), &times(13, 6, 1)),
        Some(times(3, 1, 0))
    );
    assert_eq!(
        difference(&times(10, 5, 1), &times(16, 3, 2)),
        Some(times(4, 0, 1))
    );
    assert_eq!(
        difference(&times(10, 5, 1), &times(9, 7, 2)),
        Some(times(1, 0, 1))
    );
    assert_eq!(difference(&times(10, 5, 1), &times(1, 1, 2)), None);
    assert_eq!(difference(&times(10, 5, 3), &times(11, 5, 2)), None);
    // A CPU that was offline leaves the others as they are.
    let (earlier, mut later) = two();
    later.activity.as_mut().unwrap().cpus[0].times.idle = 0;
    later
        .activity
        .as_mut()
        .unwrap()
        .all_cpus
        .as_mut()
        .unwrap()
        .idle = 0;
    let window = Window::between(&earlier, &later).unwrap();
    assert_eq!(
        window.changes,
        [Change::CpuTimesWentBack(0), Change::AllCpuTimesWentBack]
    );
    let activity = window.activity.unwrap();
    assert_eq!((activity.cpus.len(), activity.all_cpus), (1, None));
}

#[test]
fn a_probe_that_attached_in_between_counted_from_then_on() {
    let (mut earlier, later) = two();
    let probe = earlier
        .probes
        .iter_mut()
        .find(|it| it.name == probes::NVME_SQ)
        .unwrap();
    probe.state = ProbeState::NotApplicable;
    let window = Window::between(&earlier, &later).unwrap();
    // Without a driver nothing completed.
    assert!(window.counted.completions);
    assert_eq!(
        window.changes[0].to_string(),
        "probe nvme_sq went from not-applicable to attached"
    );
}
