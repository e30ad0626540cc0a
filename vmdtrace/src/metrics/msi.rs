//! What is done to controllers' interrupts and to those of their children.

use prometheus::proto::MetricFamily;
use vmdtrace_common::msi::Operation;

use super::Part;
use super::family::{CounterFamily, Unit};
use super::host::controller_value;
use crate::snapshot::probes::{self, Counted};
use crate::snapshot::{MsiCounts, OperationCount, Snapshot};

pub(super) fn add(
    snapshot: &Snapshot,
    msi: &MsiCounts,
    part: Part,
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    let MsiCounts {
        operations,
        unassigned,
        allocation_failures,
        lost_messages,
    } = msi;
    let mut by_operation = CounterFamily::new(
        "vmdtrace_msi_operations_total",
        "Operations on controllers' interrupts and on those of their children.",
        Unit::One,
        ["operation"],
    );
    let mut by_controller = CounterFamily::new(
        "vmdtrace_controller_msi_operations_total",
        "vmdtrace_msi_operations_total by controller.",
        Unit::One,
        ["controller", "operation"],
    );
    let counts = |operation: Operation| snapshot.counts(probes::of_operation(operation));
    for controller in &snapshot.topology.controllers {
        for operation in Operation::ALL.into_iter().filter(|it| counts(*it)) {
            let address = controller_value(Some(&controller.address));
            by_operation.add([operation.as_str()], 0);
            by_controller.add([address, operation.as_str()], 0);
        }
    }
    for OperationCount {
        controller,
        operation,
        count,
    } in operations
    {
        if counts(*operation) {
            let address = controller_value(Some(controller));
            by_operation.add([operation.as_str()], *count);
            by_controller.add([address, operation.as_str()], *count);
        }
    }
    if part == Part::Disks {
        by_controller.push_to(families);
        return;
    }
    by_operation.push_to(families);

    let mut total = |name, help, count| {
        let mut family = CounterFamily::new(name, help, Unit::One, []);
        family.add([], count);
        family.push_to(families);
    };
    if Operation::ALL.into_iter().any(counts) {
        total(
            "vmdtrace_unassigned_msi_operations_total",
            "Operations on interrupts whose controller could not be told.",
            *unassigned,
        );
        total(
            "vmdtrace_msi_messages_lost_total",
            "Operations that were to be told in the log and found no room.",
            *lost_messages,
        );
    }
    if counted.allocation_failures {
        total(
            "vmdtrace_vector_allocation_failures_total",
            "Searches for a free interrupt vector on some CPUs, for any device, that found none; \
             the kernel may have gone on to search on others.",
            *allocation_failures,
        );
    }
}
