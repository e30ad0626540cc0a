//! Many servers, the worst first, from recording rules only: its queries cost the
//! same for one disk as for thousands.

use crate::model::{Dashboard, Panel, Row, Variable};

/// Rows of a table.
const ROWS: u32 = 20;

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        name: "fleet",
        title: "vmdtrace / Fleet",
        description: "All servers, the worst first. Everything comes from the recording rules in \
                      dashboards/rules/recording.yml; without them it is empty.",
        variables: vec![Variable::FLEET_JOB, Variable::FLEET_INSTANCE],
        rows: vec![Row::new("Now", now()), Row::new("Worst first", worst())],
    }
}

fn now() -> Vec<Panel> {
    vec![
        Panel::stat("Servers that answer", "none", "Of the last scrape.")
            .query("sum(instance:vmdtrace_up:min{@host})", "servers"),
        Panel::stat(
            "Servers that do not",
            "none",
            "Their daemon is down or cannot be reached: nobody counts there.",
        )
        .query(
            "count(instance:vmdtrace_up:min{@host} == 0) or 0 * \
             count(instance:vmdtrace_up:min{@host})",
            "servers",
        ),
        Panel::stat(
            "Controllers by mode",
            "none",
            "remap: a few vectors stand for all disks behind the controller. bypass: \
             each disk's interrupts go straight to a CPU.",
        )
        .width(8)
        .query(
            "sum by (mode) (controller:vmdtrace_mode:info{@host})",
            "{{mode}}",
        ),
        Panel::stat(
            "I/O rate",
            "iops",
            "NVMe completions a second of all servers, however they were taken.",
        )
        .query(
            "sum(instance:vmdtrace_completions:rate5m{@host})",
            "completions",
        ),
        Panel::stat(
            "Impaired probes",
            "none",
            "Probes that should count and do not, over all servers.",
        )
        .query(
            "sum(instance:vmdtrace_probes_impaired:sum{@host})",
            "probes",
        ),
    ]
}

/// The largest values of a recorded series.
fn most(count: u32, series: &str) -> String {
    format!("topk({count}, {series}{{@host}})")
}

/// Another recorded series, of those that have the most of the first.
fn beside(series: &str, worst: &str) -> String {
    format!("{series}{{@host}} and {}", most(ROWS, worst))
}

fn worst() -> Vec<Panel> {
    let busiest = "instance:vmdtrace_interrupt_seconds_of_busiest_cpu:rate5m";
    let timeouts = "controller:vmdtrace_timeouts:increase1h";
    let latency = "controller:vmdtrace_completion_latency_seconds:mean_rate5m";
    let nothing = "controller:vmdtrace_runs_for_nothing_per_completion:ratio_rate5m";
    let of_server = |series| beside(series, busiest);
    let of_controller = |series| beside(series, nothing);
    vec![
        Panel::table(
            "Servers",
            "none",
            "The twenty with the busiest CPU: the share of its time in handlers; then the I/O \
             rate, time in handlers in CPUs, hits among eligible bios, and failed searches for \
             vectors within an hour.",
        )
        .column(&most(ROWS, busiest), "busiest CPU", "percentunit")
        .column(
            &of_server("instance:vmdtrace_completions:rate5m"),
            "I/O rate",
            "iops",
        )
        .query(
            &of_server("instance:vmdtrace_interrupt_seconds:rate5m"),
            "CPUs in handlers",
        )
        .column(
            &of_server("instance:vmdtrace_bio_cache_hits:ratio_rate5m"),
            "bio hits",
            "percentunit",
        )
        .query(
            &of_server("instance:vmdtrace_vector_allocation_failures:increase1h"),
            "vectors not found",
        ),
        Panel::table(
            "Controllers with faults",
            "none",
            "The twenty with the most time-outs within an hour, and how many of these were lost \
             interrupts.",
        )
        .width(12)
        .query(&most(ROWS, timeouts), "time-outs")
        .query(
            &beside("controller:vmdtrace_lost_interrupts:increase1h", timeouts),
            "lost interrupts",
        ),
        Panel::table(
            "Controllers by latency",
            "s",
            "Mean from the start of a request to its completion, the twenty longest.",
        )
        .width(12)
        .query(&most(ROWS, latency), "mean latency"),
        Panel::table(
            "Controllers by price",
            "none",
            "The twenty with the most runs for nothing per completion; completions per interrupt, \
             the share that lands on other CPUs, and I/O rate.",
        )
        .query(&most(ROWS, nothing), "runs for nothing")
        .query(
            &of_controller("controller:vmdtrace_completions_per_interrupt:ratio_rate5m"),
            "per interrupt",
        )
        .column(
            &of_controller("controller:vmdtrace_remote_completions:ratio_rate5m"),
            "remote",
            "percentunit",
        )
        .column(
            &of_controller("controller:vmdtrace_completions:rate5m"),
            "I/O rate",
            "iops",
        ),
        Panel::graph(
            "Handler time per I/O, the worst ten",
            "s",
            "Time in handlers for each completion, by controller.",
        )
        .query(
            &most(
                10,
                "controller:vmdtrace_handler_seconds_per_completion:ratio_rate5m",
            ),
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Hardware interrupts, the most ten",
            "ops",
            "By controller: those of its vectors in remap, those of its disks in \
             bypass.",
        )
        .query(
            &most(10, "controller:vmdtrace_hardware_interrupts:rate5m"),
            "{{instance}} {{controller}}",
        ),
    ]
}
