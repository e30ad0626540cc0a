//! The table for a person.

use xtask_lab::experiment::{Mode, Run};

/// The figures of the report that started the project (a patch proposed on the
/// linux-pci list on 2022-12-22, to keep controller 28C0 from bypassing its
/// remapping): IOPS of one disk on one CPU, and of 12 disks on 6 CPUs.
fn of_the_source(mode: Mode, one_disk: bool) -> &'static str {
    match (mode, one_disk) {
        (Mode::Remap, true) => "1171k",
        (Mode::Bypass, true) => "1183k",
        (Mode::Remap, false) => "1144k",
        (Mode::Bypass, false) => "562k",
    }
}

/// Three lines of title for each column.
const TITLES: [[&str; 3]; 12] = [
    ["", "", "mode"],
    ["", "", "disks"],
    ["", "fio", "CPUs"],
    ["child", "int. per", "vector"],
    ["", "IOPS of", "source"],
    ["", "IOPS", "here *"],
    ["", "hardware", "interrupts"],
    ["completions", "per hw", "interrupt"],
    ["child runs", "per hw", "interrupt"],
    ["runs for", "nothing", "%"],
    ["int. time", "per I/O", "us *"],
    ["int. time", "% of CPU", "mean/max *"],
];

pub(super) fn render(runs: &[Run]) -> String {
    let title = |line: usize| TITLES.iter().map(|title| title[line].to_owned()).collect();
    let mut rows: Vec<Vec<String>> = (0..3).map(title).collect();
    rows.extend(runs.iter().map(row));
    let mut text = aligned(&rows);
    text.push_str(
        "\n* emulated device: counts and ratios hold, speeds do not. \
         The source measured 1 disk on 1 CPU, and 12 disks on 6 CPUs.\n",
    );
    text.push_str(&agreement(runs));
    text
}

fn row(run: &Run) -> Vec<String> {
    let figure = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let shares = run.interrupt_share_by_cpu();
    let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    let most = shares.iter().copied().fold(0.0, f64::max);
    vec![
        run.mode.name().to_owned(),
        run.disks_busy.to_string(),
        run.fio_cpus.to_string(),
        run.sharing_factor
            .map_or("own".to_owned(), |factor| format!("{factor:.1}")),
        of_the_source(run.mode, run.disks_busy == 1).to_owned(),
        format!("{:.0}", run.iops),
        run.hardware_interrupts.to_string(),
        figure(run.completions_per_interrupt(), 2),
        figure(run.child_runs_per_interrupt(), 2),
        figure(run.share_for_nothing().map(|share| share * 100.0), 1),
        figure(
            run.interrupt_seconds_per_io().map(|seconds| seconds * 1e6),
            1,
        ),
        format!("{:.1}/{:.1}", mean * 100.0, most * 100.0),
    ]
}

/// The first column to the left, the others to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let widths = rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(String::len);
            let width = widths.max().unwrap_or_default();
            if column == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn agreement(runs: &[Run]) -> String {
    let disagreeing = runs
        .iter()
        .filter(|run| !run.disagreements().is_empty())
        .count();
    if disagreeing == 0 {
        "In every row the daemon, the kernel, the device, fio and Prometheus agree to the last \
         unit."
            .to_owned()
    } else {
        format!(
            "In {disagreeing} of {} rows the sources DISAGREE: see the error.",
            runs.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [
            vec!["a".to_owned(), "1".to_owned()],
            vec!["long".to_owned(), "1000".to_owned()],
        ];
        assert_eq!(aligned(&rows), "a        1\nlong  1000\n");
    }

    #[test]
    fn the_sources_figures_stand_where_they_belong() {
        assert_eq!(of_the_source(Mode::Bypass, false), "562k");
        assert_eq!(of_the_source(Mode::Remap, false), "1144k");
        assert_eq!(of_the_source(Mode::Bypass, true), "1183k");
        assert_eq!(of_the_source(Mode::Remap, true), "1171k");
    }
}
