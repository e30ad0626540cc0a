//! Is it VMD? What there is, in which mode, and what an I/O costs in interrupts.

use crate::model::{Dashboard, Panel, Row, Variable};

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        name: "overview",
        title: "vmdtrace / Overview",
        description: "Controllers, their mode, I/O and what its interrupts cost. Begin here; the \
                      links at the top lead on.",
        variables: Variable::of_servers(),
        rows: vec![
            Row::new("Now", now()),
            Row::new("I/O and interrupts", rates()),
            Row::new("Faults", faults()),
            Row::new("vmdtrace itself", itself()),
        ],
    }
}

fn now() -> Vec<Panel> {
    vec![
        Panel::stat(
            "I/O rate",
            "iops",
            "NVMe completions a second of the chosen controllers, taken in handlers. \
             Without a choice, of disks behind no VMD, too.",
        )
        .query(
            "sum(rate(vmdtrace_completions_total{@controller}@rate))",
            "completions",
        ),
        Panel::stat(
            "Outside handlers",
            "iops",
            "Completions that no handler took: polled, after a time-out, or in an \
             interrupt thread. Whatever is told per interrupt leaves them out. Of the \
             whole server.",
        )
        .query(
            "sum(rate(vmdtrace_completions_outside_handler_total{@host}@rate))",
            "completions",
        ),
        Panel::stat(
            "Completions per interrupt",
            "none",
            "Near 1: each I/O costs an interrupt. Higher: interrupts are merged, by \
             sharing a vector, by load, or by the disk itself.",
        )
        .query(
            "sum(rate(vmdtrace_completions_total{@controller}@rate)) / \
             sum(rate(vmdtrace_hardware_interrupts_total{@controller}@rate))",
            "completions",
        ),
        Panel::stat(
            "Interrupt time per I/O",
            "s",
            "Time in handlers for each completion: their part of what an interrupt \
             costs. Softirqs and what the kernel does before and after a handler are \
             not in it.",
        )
        .query(
            "sum(rate(vmdtrace_handler_seconds_total{@controller}@rate)) / \
             sum(rate(vmdtrace_completions_total{@controller}@rate))",
            "per completion",
        ),
        Panel::stat(
            "Busiest CPU",
            "percentunit",
            "Share of its time that one CPU spends in handlers. Near 100 % it does \
             nothing else, and I/O waits for it. Of the whole server.",
        )
        .query(
            "max(rate(vmdtrace_cpu_interrupt_seconds_total{@host}@rate))",
            "in handlers",
        ),
        Panel::stat(
            "Probes that should count and do not",
            "none",
            "Blocked by policy or broken. Where this is not 0, a number that is \
             missing means \"not counted\".",
        )
        .query(
            "sum(vmdtrace_probe_info{@host, state=~\"blocked|broken\"}) or 0 * \
             sum(vmdtrace_build_info{@host})",
            "probes",
        ),
        Panel::table(
            "Controllers",
            "none",
            "Each VMD: its mode (remap: a few vectors of its own stand for all disks \
             behind it; bypass: each disk's interrupts go straight to a CPU), its \
             vectors, the interrupts of its disks and, in remap, how many of these \
             share a vector.",
        )
        .query(
            "sum by (instance, controller, device_id, mode, numa_node) \
             (vmdtrace_controller_info{@controller})",
            "",
        )
        .query(
            "sum by (instance, controller) (vmdtrace_controller_vectors{@controller})",
            "vectors",
        )
        .query(
            "sum by (instance, controller) \
             (vmdtrace_controller_child_interrupts{@controller})",
            "disks' interrupts",
        )
        .remap_query(
            "sum by (instance, controller) \
             (vmdtrace_controller_sharing_ratio{@controller})",
            "interrupts per vector",
        ),
    ]
}

fn rates() -> Vec<Panel> {
    vec![
        Panel::graph(
            "I/O rate by controller",
            "iops",
            "Completions in handlers. The line without a controller is of disks \
             behind none.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_completions_total{@controller}@rate))",
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Completions per hardware interrupt",
            "none",
            "By controller. See whether it follows the I/O rate: interrupts merge \
             under load.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_completions_total{@controller}@rate)) / sum by (instance, \
             controller) (rate(vmdtrace_hardware_interrupts_total{@controller}@rate))",
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Interrupt time per I/O by controller",
            "s",
            "Time in handlers for each completion, by controller.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_handler_seconds_total{@controller}@rate)) / sum by \
             (instance, controller) \
             (rate(vmdtrace_completions_total{@controller}@rate))",
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Handler runs for nothing",
            "percentunit",
            "Share of the disks' handler runs that found nothing to do: the price of \
             not knowing which disk an interrupt of the controller is for. Next to 0 \
             in bypass.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_handler_unhandled_total{@controller}@rate)) / sum by \
             (instance, controller) \
             (rate(vmdtrace_handler_runs_total{@controller}@rate))",
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Latency, mean and 99th percentile",
            "s",
            "From the start of a request to its completion, of one completion in 64. \
             The percentile is interpolated between the bounds of a few buckets.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_completion_latency_seconds_sum{@controller}@rate)) / sum \
             by (instance, controller) \
             (rate(vmdtrace_completion_latency_seconds_count{@controller}@rate))",
            "{{instance}} {{controller}} mean",
        )
        .query(
            "histogram_quantile(0.99, sum by (instance, controller, le) \
             (rate(vmdtrace_completion_latency_seconds_bucket{@controller}@rate)))",
            "{{instance}} {{controller}} 99 %",
        ),
        Panel::graph(
            "Time in interrupt handlers",
            "percentunit",
            "CPU time of all handlers of disks and controllers, in CPUs: 150 % is one \
             CPU and a half. Of the whole server.",
        )
        .query(
            "sum by (instance) \
             (rate(vmdtrace_cpu_interrupt_seconds_total{@host}@rate))",
            "{{instance}}",
        ),
    ]
}

fn faults() -> Vec<Panel> {
    vec![
        Panel::graph(
            "Time-outs and lost interrupts",
            "none",
            "Commands that were late, and of these the ones that were done while \
             their interrupt had not come; in the interval that a rate is over. A \
             disk that is slow or dead has the first and not the second.",
        )
        .width(8)
        .query(
            "sum by (instance, controller) \
             (increase(vmdtrace_timeouts_total{@controller}@rate))",
            "{{instance}} {{controller}} time-outs",
        )
        .query(
            "sum by (instance, controller) \
             (increase(vmdtrace_lost_interrupts_total{@controller}@rate))",
            "{{instance}} {{controller}} lost interrupts",
        ),
        Panel::graph(
            "Operations on interrupts",
            "ops",
            "What the VMD driver did to interrupts of disks and vectors. A controller \
             in bypass has next to none; a steady rate of moves is irqbalance.",
        )
        .width(8)
        .query(
            "sum by (instance, operation) \
             (rate(vmdtrace_msi_operations_total{@host}@rate))",
            "{{instance}} {{operation}}",
        ),
        Panel::graph(
            "Searches for a vector that failed",
            "none",
            "A CPU had no free interrupt vector, for any device; in the interval that \
             a rate is over. The kernel may have found one elsewhere.",
        )
        .width(8)
        .query(
            "sum by (instance) \
             (increase(vmdtrace_vector_allocation_failures_total{@host}@rate))",
            "{{instance}}",
        ),
    ]
}

fn itself() -> Vec<Panel> {
    vec![
        Panel::table(
            "Probes",
            "none",
            "Every probe, its state, and why it is not attached. `unsupported`: the \
             kernel lacks it; `not-applicable`: nothing to observe yet; `blocked`: \
             permission or policy; `broken`: a fault of vmdtrace.",
        )
        .query(
            "sum by (instance, probe, mechanism, state, reason) \
             (vmdtrace_probe_info{@host})",
            "",
        ),
        Panel::graph(
            "Runs of the probes that were skipped",
            "ops",
            "The kernel skips a program that is running on that CPU already: these \
             events are in no count.",
        )
        .query(
            "sum by (instance, probe) (rate(vmdtrace_probe_missed_total{@host}@rate))",
            "{{instance}} {{probe}}",
        ),
        Panel::graph(
            "What could not be attributed",
            "ops",
            "Handler runs that are in no disk's and no controller's counts. All are 0 \
             on a healthy server; docs/metrics.md tells what each means.",
        )
        .query(
            "sum by (instance) (rate(vmdtrace_unassigned_runs_total{@host}@rate))",
            "{{instance}} no free slot",
        )
        .query(
            "sum by (instance) (rate(vmdtrace_lost_frames_total{@host}@rate))",
            "{{instance}} end not seen",
        )
        .query(
            "sum by (instance) (rate(vmdtrace_unmatched_exits_total{@host}@rate))",
            "{{instance}} start not seen",
        )
        .query(
            "sum by (instance) (rate(vmdtrace_overflowed_runs_total{@host}@rate))",
            "{{instance}} nested too deep",
        )
        .query(
            "sum by (instance) (rate(vmdtrace_unreadable_actions_total{@host}@rate))",
            "{{instance}} name not readable",
        )
        .query(
            "sum by (instance) (rate(vmdtrace_out_of_range_runs_total{@host}@rate))",
            "{{instance}} number too high",
        ),
        Panel::stacked(
            "Duration of a scrape",
            "s",
            "What each part took: `snapshot` reads counters and topology, the others \
             make families of them.",
        )
        .query(
            "sum by (instance, collector) (vmdtrace_scrape_duration_seconds{@host})",
            "{{instance}} {{collector}}",
        ),
        Panel::graph(
            "Memory",
            "bytes",
            "Of the process, and of the maps it shares with the eBPF programs.",
        )
        .width(6)
        .query(
            "sum by (instance) (process_resident_memory_bytes{@host})",
            "{{instance}} process",
        )
        .query(
            "sum by (instance) (vmdtrace_map_memory_bytes{@host})",
            "{{instance}} maps",
        ),
        Panel::graph(
            "CPU time of the process",
            "percentunit",
            "Without the eBPF programs, which run in the interrupts they count.",
        )
        .width(6)
        .query(
            "sum by (instance) (rate(process_cpu_seconds_total{@host}@rate))",
            "{{instance}}",
        ),
    ]
}
