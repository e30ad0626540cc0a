//! Recordings in a real Prometheus.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use xtask_lab::{Prometheus, RawSeries};
use xtask_setup::Setup;

use crate::{artifacts, lab_test};

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    let said = [output.stderr, output.stdout].concat();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&said)
    );
}

/// Prometheus with everything that is in the recording, imported by promtool.
fn import(recording: &Path) -> Prometheus {
    let programs = Setup::new().unwrap().prometheus().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("metrics.txt");
    let vmdtrace = artifacts().vmdtrace.as_ref().unwrap();
    let replay = [
        Path::new("replay"),
        recording,
        Path::new("--openmetrics"),
        &text,
    ];
    succeeds(Command::new(vmdtrace).args(replay));
    Prometheus::start_with(&programs.prometheus, |data| {
        let mut promtool = Command::new(&programs.promtool);
        promtool.args(["tsdb", "create-blocks-from", "openmetrics"]);
        succeeds(promtool.arg(&text).arg(data));
        let blocks = std::fs::read_dir(data).unwrap();
        assert!(blocks.count() > 0, "promtool made no block");
        Ok(())
    })
    .unwrap()
}

/// The samples of a selector from a second before to a minute after a time.
fn samples(prometheus: &Prometheus, selector: &str, begin: f64) -> Vec<RawSeries> {
    prometheus.raw(selector, begin - 1.0, begin + 60.0).unwrap()
}

/// A file whose numbers are known.
fn a_kept_recording_is_answered_from() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let prometheus = import(&root.join("vmdtrace/tests/recordings/version-1.vmdtrace"));
    // Booted at 1,790,000,000 s; the first Snapshot is 5,000 s later.
    let series = samples(&prometheus, "vmdtrace_completions_total", 1_790_005_000.0);
    let disks: Vec<&str> = series.iter().map(|it| it.labels["disk"].as_str()).collect();
    assert_eq!(disks.len(), 3, "{disks:?}");
    let last = |series: &RawSeries| series.samples.last().unwrap().1;
    assert_eq!(series.iter().map(last).sum::<f64>(), 4_001_682.0);
    for series in &series {
        assert_eq!(series.samples.len(), 5, "{series:?}");
        assert!(series.samples.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        assert_eq!(series.samples[0].0, 1_790_005_000.0);
    }
}

/// The finished program records this machine while a command runs.
fn this_machine_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording");
    let vmdtrace = artifacts().vmdtrace.as_ref().unwrap();
    let now = || {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        since.as_secs_f64()
    };
    let begin = now();
    let mut record = Command::new(vmdtrace);
    record.arg("record").arg("-o").arg(&file);
    record.args(["--every", "50ms", "--", "sh", "-c", "sleep 1; exit 9"]);
    let output = record.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(9), "{said}");
    let end = now();
    let told = said.lines().last().unwrap();
    let snapshots: usize = told
        .strip_prefix("vmdtrace: ")
        .and_then(|rest| rest.split_once(" snapshots"))
        .map(|(count, _)| count.parse().unwrap())
        .unwrap();
    assert!(snapshots > 2, "{told}");
    let prometheus = import(&file);
    let attached = "vmdtrace_probe_attached{probe=\"irq_handler_entry\"}";
    let series = samples(&prometheus, attached, begin);
    let [series] = &series[..] else {
        panic!("{series:?}")
    };
    assert_eq!(series.samples.len(), snapshots);
    // Prometheus keeps milliseconds.
    let in_time =
        |(at, value): &(f64, f64)| *value == 1.0 && (begin - 0.01..=end + 0.01).contains(at);
    assert!(
        series.samples.iter().all(in_time),
        "{begin} {end} {series:?}"
    );
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        lab_test("recordings::a_kept_recording_is_answered_from", || {
            a_kept_recording_is_answered_from();
            Ok(())
        }),
        lab_test("recordings::this_machine_is_recorded", || {
            this_machine_is_recorded();
            Ok(())
        }),
    ]
}
