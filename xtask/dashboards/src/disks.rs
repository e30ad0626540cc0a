//! Why many disks together are slower than each alone: docs/diagnosis.md as
//! pictures, bypass beside remap.

use crate::model::{Dashboard, Panel, Row, Switch, Variable};

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        name: "disks",
        title: "vmdtrace / Multi-disk IOPS",
        description: "I/O rate, latency and interrupts by controller and by disk, by the way \
                      interrupts take. `vmdtrace diagnose` judges the same numbers.",
        variables: Variable::of_servers(),
        rows: vec![
            Row::new("Bypass beside remap", paths()),
            Row::new("Disks", disks()),
            Row::new("Where completions land", placement()),
            Row::new("Each disk's completions", each_disk()).with(Switch::Disks),
        ],
    }
}

fn paths() -> Vec<Panel> {
    vec![
        Panel::graph(
            "I/O rate by path",
            "iops",
            "Completions in handlers by how interrupts reach a CPU: vmd-remap, \
             vmd-bypass, or direct for disks behind no VMD.",
        )
        .query(
            "sum by (instance, path) (rate(vmdtrace_completions_total{@controller, \
             disk!=\"\"}@rate))",
            "{{instance}} {{path}}",
        ),
        Panel::graph(
            "I/O rate per disk by path",
            "iops",
            "Mean over all disks of the path, idle ones too. Fewer than one disk \
             alone does at the same depth: look on.",
        )
        .query(
            "sum by (instance, path) (rate(vmdtrace_completions_total{@controller, \
             disk!=\"\"}@rate)) / count by (instance, path) \
             (vmdtrace_disk_info{@controller})",
            "{{instance}} {{path}}",
        ),
        Panel::graph(
            "Completions per hardware interrupt by path",
            "none",
            "h2-batching: in remap a vector's interrupt takes other queues' \
             completions along. A cause only where CPUs have no time for interrupts.",
        )
        .query(
            "sum by (instance, path) \
             (rate(vmdtrace_completions_total{@controller}@rate)) / (sum by (instance, \
             path) (rate(vmdtrace_hardware_interrupts_total{@controller}@rate)) > 0)",
            "{{instance}} {{path}}",
        ),
        Panel::graph(
            "Handler time per completion by path",
            "s",
            "h1-cpu-time: what an I/O costs in handlers. With the busiest CPU far \
             from full, it is not what bounds the rate.",
        )
        .query(
            "sum by (instance, path) \
             (rate(vmdtrace_handler_seconds_total{@controller}@rate)) / (sum by \
             (instance, path) (rate(vmdtrace_completions_total{@controller}@rate)) > 0)",
            "{{instance}} {{path}}",
        ),
        Panel::graph(
            "Runs for nothing per completion by path",
            "none",
            "h5-queues: handler runs that found nothing to do. Four to a completion \
             are about a fifth of an I/O's CPU time.",
        )
        .query(
            "sum by (instance, path) \
             (rate(vmdtrace_handler_unhandled_total{@controller}@rate)) / sum by \
             (instance, path) (rate(vmdtrace_completions_total{@controller, \
             disk!=\"\"}@rate))",
            "{{instance}} {{path}}",
        ),
        Panel::graph(
            "In flight, from Little's law",
            "none",
            "h0-load: rate times mean latency is how many requests are under way. \
             Less of them is less load, which is no fault. Of one completion in 64.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_completions_total{@controller}@rate)) * sum by (instance, \
             controller) \
             (rate(vmdtrace_completion_latency_seconds_sum{@controller}@rate)) / sum \
             by (instance, controller) \
             (rate(vmdtrace_completion_latency_seconds_count{@controller}@rate))",
            "{{instance}} {{controller}}",
        ),
    ]
}

fn disks() -> Vec<Panel> {
    vec![
        Panel::stacked(
            "I/O rate by disk",
            "iops",
            "Completions taken in each disk's handlers.",
        )
        .query(
            "sum by (instance, disk) (rate(vmdtrace_completions_total{@controller, \
             disk!=\"\"}@rate))",
            "{{instance}} {{disk}}",
        ),
        Panel::graph(
            "Handler runs by disk",
            "ops",
            "In bypass as many as hardware interrupts; in remap each interrupt of a \
             vector runs the handlers of all queues that share it.",
        )
        .query(
            "sum by (instance, disk) (rate(vmdtrace_handler_runs_total{@controller, \
             disk!=\"\"}@rate))",
            "{{instance}} {{disk}}",
        ),
        Panel::graph(
            "Share of handler runs for nothing by disk",
            "percentunit",
            "In remap an idle disk's runs are all for nothing: it shares vectors with \
             busy ones.",
        )
        .query(
            "sum by (instance, disk) \
             (rate(vmdtrace_handler_unhandled_total{@controller}@rate)) / sum by \
             (instance, disk) (rate(vmdtrace_handler_runs_total{@controller}@rate))",
            "{{instance}} {{disk}}",
        ),
        Panel::graph(
            "Handler time by disk",
            "percentunit",
            "Time in each disk's handlers, without what ran inside them; the line \
             without a disk is the controllers' own handlers.",
        )
        .query(
            "sum by (instance, disk) \
             (rate(vmdtrace_handler_seconds_total{@controller}@rate))",
            "{{instance}} {{disk}}",
        ),
        Panel::table(
            "Disks",
            "none",
            "Each disk, its address, model, and how its interrupts reach a CPU.",
        )
        .query(
            "sum by (instance, controller, disk, address, path, model) \
             (vmdtrace_disk_info{@controller})",
            "",
        ),
    ]
}

fn placement() -> Vec<Panel> {
    vec![
        Panel::graph(
            "Share of remote completions by distance",
            "percentunit",
            "h3-placement: completions on another CPU than the one that made the \
             request, by how far the two are apart. Those that are missing to 100 % \
             are local.",
        )
        .query(
            "sum by (instance, distance) \
             (rate(vmdtrace_remote_completions_total{@controller}@rate)) / ignoring \
             (distance) group_left sum by (instance) \
             (rate(vmdtrace_completions_total{@controller}@rate))",
            "{{instance}} {{distance}}",
        ),
        Panel::graph(
            "Handling of a completion, mean",
            "s",
            "From the completion to the end of the request, of the same one in 64: \
             what is sent to another CPU has its way there in it.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_completion_handling_seconds_sum{@controller}@rate)) / sum \
             by (instance, controller) \
             (rate(vmdtrace_completion_handling_seconds_count{@controller}@rate))",
            "{{instance}} {{controller}}",
        ),
        Panel::heatmap(
            "Latency",
            "s",
            "h4-device: a latency that rises with the number of busy disks, while \
             CPUs have time, is made below them. One completion in 64.",
        )
        .query(
            "sum by (le) \
             (increase(vmdtrace_completion_latency_seconds_bucket{@controller}@rate))",
            "{{le}}",
        ),
        Panel::heatmap("Handling of a completion", "s", "One completion in 64.").query(
            "sum by (le) \
             (increase(vmdtrace_completion_handling_seconds_bucket{@controller}@rate))",
            "{{le}}",
        ),
    ]
}

fn each_disk() -> Vec<Panel> {
    vec![
        Panel::graph(
            "Mean latency by disk",
            "s",
            "One disk far above the others is a slow disk or link; all of them \
             together are not.",
        )
        .query(
            "sum by (instance, disk) \
             (rate(vmdtrace_disk_completion_latency_seconds_sum{@controller}@rate)) / \
             sum by (instance, disk) \
             (rate(vmdtrace_disk_completion_latency_seconds_count{@controller}@rate))",
            "{{instance}} {{disk}}",
        ),
        Panel::graph(
            "Remote completions by disk",
            "iops",
            "Completions on another CPU than the one that made the request.",
        )
        .query(
            "sum by (instance, disk) \
             (rate(vmdtrace_disk_remote_completions_total{@controller}@rate))",
            "{{instance}} {{disk}}",
        ),
        Panel::graph(
            "Time-outs by disk",
            "none",
            "In the interval that a rate is over.",
        )
        .query(
            "sum by (instance, disk) \
             (increase(vmdtrace_disk_timeouts_total{@controller}@rate))",
            "{{instance}} {{disk}}",
        ),
        Panel::graph(
            "Lost interrupts by disk",
            "none",
            "In the interval that a rate is over.",
        )
        .query(
            "sum by (instance, disk) \
             (increase(vmdtrace_disk_lost_interrupts_total{@controller}@rate))",
            "{{instance}} {{disk}}",
        ),
    ]
}
