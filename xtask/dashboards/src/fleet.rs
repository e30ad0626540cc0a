//! Many servers, the worst first, from recording rules only: its queries cost the
//! same for one disk as for thousands.

use crate::model::{Dashboard, Panel, Row, Variable};

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

fn worst() -> Vec<Panel> {
    vec![
        Panel::table(
            "Servers",
            "none",
            "The busiest CPU first: the share of its time in handlers; then the I/O \
             rate, time in handlers in CPUs, hits among eligible bios, and failed \
             searches for vectors within an hour.",
        )
        .column(
            "topk(20, \
             instance:vmdtrace_interrupt_seconds_of_busiest_cpu:rate5m{@host})",
            "busiest CPU",
            "percentunit",
        )
        .column(
            "instance:vmdtrace_completions:rate5m{@host}",
            "I/O rate",
            "iops",
        )
        .query(
            "instance:vmdtrace_interrupt_seconds:rate5m{@host}",
            "CPUs in handlers",
        )
        .column(
            "instance:vmdtrace_bio_cache_hits:ratio_rate5m{@host}",
            "bio hits",
            "percentunit",
        )
        .query(
            "instance:vmdtrace_vector_allocation_failures:increase1h{@host}",
            "vectors not found",
        ),
        Panel::table(
            "Controllers with faults",
            "none",
            "Interrupts lost within an hour, the most first, and time-outs.",
        )
        .width(12)
        .query(
            "topk(20, controller:vmdtrace_lost_interrupts:increase1h{@host})",
            "lost interrupts",
        )
        .query(
            "controller:vmdtrace_timeouts:increase1h{@host}",
            "time-outs",
        ),
        Panel::table(
            "Controllers by latency",
            "s",
            "Mean from the start of a request to its completion.",
        )
        .width(12)
        .query(
            "topk(20, \
             controller:vmdtrace_completion_latency_seconds:mean_rate5m{@host})",
            "mean latency",
        ),
        Panel::table(
            "Controllers by price",
            "none",
            "Runs for nothing per completion, the most first; completions per \
             interrupt, the share that lands on other CPUs, and I/O rate.",
        )
        .width(24)
        .query(
            "topk(20, \
             controller:vmdtrace_runs_for_nothing_per_completion:ratio_rate5m{@host})",
            "runs for nothing",
        )
        .query(
            "controller:vmdtrace_completions_per_interrupt:ratio_rate5m{@host}",
            "per interrupt",
        )
        .column(
            "controller:vmdtrace_remote_completions:ratio_rate5m{@host}",
            "remote",
            "percentunit",
        )
        .column(
            "controller:vmdtrace_completions:rate5m{@host}",
            "I/O rate",
            "iops",
        ),
        Panel::graph(
            "Handler time per I/O, the worst ten",
            "s",
            "Time in handlers for each completion, by controller.",
        )
        .query(
            "topk(10, \
             controller:vmdtrace_handler_seconds_per_completion:ratio_rate5m{@host})",
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Hardware interrupts, the most ten",
            "ops",
            "By controller: those of its vectors in remap, those of its disks in \
             bypass.",
        )
        .query(
            "topk(10, controller:vmdtrace_hardware_interrupts:rate5m{@host})",
            "{{instance}} {{controller}}",
        ),
    ]
}
