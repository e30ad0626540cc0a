//! On which CPUs interrupts run, how concentrated they are, and who shares what.

use crate::model::{Dashboard, Panel, Row, Switch, Variable};

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        name: "interrupts",
        title: "vmdtrace / Interrupts",
        description: "Which CPUs spend their time in handlers, how concentrated that is, what \
                      shares a vector, and where completions land.",
        variables: Variable::of_servers(),
        rows: vec![
            Row::new("CPUs", cpus()),
            Row::new("Sharing", sharing()),
            Row::new("Placement of completions", placement()),
            Row::new("Vectors of the controllers", vectors()).with(Switch::Vectors),
            Row::new("CPUs of the controllers", cpus_of_controllers()).with(Switch::Cpus),
        ],
    }
}

fn cpus() -> Vec<Panel> {
    vec![
        Panel::grid(
            "Time in handlers by CPU",
            "Each line is a CPU, its colour the share of its time that it spends in \
             handlers of disks, controllers and watched lines. A few red lines among \
             green ones: look at where vectors may go.",
        )
        .width(24)
        .query(
            "sum by (instance, cpu) \
             (rate(vmdtrace_cpu_interrupt_seconds_total{@host}@rate))",
            "{{instance}} CPU {{cpu}}",
        ),
        Panel::graph(
            "The busiest CPU",
            "percentunit",
            "From 90 % on, I/O waits for this CPU.",
        )
        .width(8)
        .query(
            "max by (instance) \
             (rate(vmdtrace_cpu_interrupt_seconds_total{@host}@rate))",
            "{{instance}}",
        ),
        Panel::graph(
            "Effective number of CPUs",
            "none",
            "1 / sum of squared shares of the time in handlers: ten CPUs of which one \
             has nearly everything count as one. Compare with how many there are.",
        )
        .width(8)
        .query(
            "sum by (instance) \
             (rate(vmdtrace_cpu_interrupt_seconds_total{@host}@rate)) ^ 2 / sum by \
             (instance) (rate(vmdtrace_cpu_interrupt_seconds_total{@host}@rate) ^ 2)",
            "{{instance}}",
        ),
        Panel::graph(
            "CPUs above half",
            "none",
            "How many CPUs spend more than half of their time in handlers.",
        )
        .width(8)
        .query(
            "count by (instance) \
             (rate(vmdtrace_cpu_interrupt_seconds_total{@host}@rate) > 0.5) or 0 * \
             sum by (instance) (vmdtrace_build_info{@host})",
            "{{instance}}",
        ),
    ]
}

fn sharing() -> Vec<Panel> {
    vec![
        Panel::graph(
            "Hardware interrupts",
            "ops",
            "By controller. In remap those of its vectors, in bypass those of its \
             disks; the kernel's own count, and runs it repeated without a new one.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_hardware_interrupts_total{@controller}@rate))",
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Disks' handler runs per hardware interrupt",
            "none",
            "1 in bypass. In remap the number of queues that share a vector, weighted \
             by which vectors are busy.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_handler_runs_total{@controller}@rate)) / sum by \
             (instance, controller) \
             (rate(vmdtrace_hardware_interrupts_total{@controller}@rate))",
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Disks' interrupts per vector",
            "none",
            "The sharing factor: interrupt lines of disks for each vector that serves \
             NVMe. Only in remap; in bypass nothing is shared.",
        )
        .remap_query(
            "sum by (instance, controller) \
             (vmdtrace_controller_sharing_ratio{@controller})",
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Runs of other children",
            "ops",
            "Handlers of ports, hot-plug and error reports behind the controllers: a \
             steady rate beside I/O means that they share its vectors.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_controller_other_handler_runs_total{@controller}@rate))",
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Repeated and re-sent runs",
            "ops",
            "Repeated: the line fired again while its handler ran; the kernel counts \
             both as one. Re-sent: by software, outside the vector's handler.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_handler_repeated_total{@controller}@rate))",
            "{{instance}} {{controller}} repeated",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_handler_resent_total{@controller}@rate))",
            "{{instance}} {{controller}} re-sent",
        ),
        Panel::graph(
            "The controllers' own handlers",
            "percentunit",
            "Time in the VMD driver's handler itself, without the disks' handlers \
             that it calls.",
        )
        .query(
            "sum by (instance, controller) \
             (rate(vmdtrace_handler_seconds_total{@controller, disk=\"\"}@rate))",
            "{{instance}} {{controller}}",
        ),
    ]
}

fn placement() -> Vec<Panel> {
    vec![
        Panel::stacked(
            "Remote completions in handlers",
            "iops",
            "Completions on another CPU than the one that made the request, by \
             distance: same-cache, other-cache, other-node.",
        )
        .query(
            "sum by (instance, distance) \
             (rate(vmdtrace_remote_completions_total{@controller}@rate))",
            "{{instance}} {{distance}}",
        ),
        Panel::stacked(
            "Remote completions outside handlers",
            "iops",
            "The same of completions that no handler took. Of the whole server.",
        )
        .query(
            "sum by (instance, distance) \
             (rate(vmdtrace_remote_completions_outside_handler_total{@host}@rate))",
            "{{instance}} {{distance}}",
        ),
    ]
}

fn vectors() -> Vec<Panel> {
    vec![
        Panel::graph(
            "Hardware interrupts by vector",
            "ops",
            "Each vector of the controllers that has had an interrupt.",
        )
        .remap_query(
            "sum by (instance, controller, irq) \
             (rate(vmdtrace_line_hardware_interrupts_total{@controller, \
             disk=\"\"}@rate))",
            "{{instance}} {{controller}} irq {{irq}}",
        ),
        Panel::graph(
            "Disks' handler runs per interrupt by vector",
            "none",
            "How many queues share the vector.",
        )
        .remap_query(
            "sum by (instance, controller, irq) \
             (rate(vmdtrace_line_child_runs_total{@controller, disk=\"\"}@rate)) / \
             sum by (instance, controller, irq) \
             (rate(vmdtrace_line_hardware_interrupts_total{@controller, \
             disk=\"\"}@rate))",
            "{{instance}} {{controller}} irq {{irq}}",
        ),
    ]
}

fn cpus_of_controllers() -> Vec<Panel> {
    vec![
        Panel::grid(
            "Time in handlers by CPU and controller",
            "Each line is a controller's CPU, its colour the share of that CPU's time \
             that it spends in handlers of the controller and its disks. One CPU red \
             for two controllers: they get in each other's way.",
        )
        .width(24)
        .query(
            "sum by (instance, controller, cpu) \
             (rate(vmdtrace_cpu_controller_interrupt_seconds_total{@controller}@rate))",
            "{{instance}} {{controller}} CPU {{cpu}}",
        ),
        Panel::graph(
            "CPUs that serve a controller",
            "none",
            "How many CPUs had hardware interrupts of the controller. In remap no more \
             than it has vectors.",
        )
        .query(
            "count by (instance, controller) \
             (rate(vmdtrace_cpu_controller_hardware_interrupts_total{@controller}@rate) > 0) \
             or 0 * sum by (instance, controller) \
             (rate(vmdtrace_cpu_controller_hardware_interrupts_total{@controller}@rate))",
            "{{instance}} {{controller}}",
        ),
        Panel::graph(
            "Completions per hardware interrupt by CPU",
            "none",
            "How many completions an interrupt brings on each CPU. Fewer where the CPU \
             serves few queues: the load is spread thinly.",
        )
        .query(
            "sum by (instance, controller, cpu) \
             (rate(vmdtrace_cpu_controller_completions_total{@controller}@rate)) / sum by \
             (instance, controller, cpu) \
             (rate(vmdtrace_cpu_controller_hardware_interrupts_total{@controller}@rate))",
            "{{instance}} {{controller}} CPU {{cpu}}",
        ),
    ]
}
