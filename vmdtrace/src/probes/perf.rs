//! A tracing event that runs a program of ours, by its number: the eBPF library
//! attaches kprobes and tracepoints, but not a kprobe that is an event of
//! tracefs. The calls to the kernel are unsafe.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

use perf_event_open_sys::{
    bindings::{PERF_FLAG_FD_CLOEXEC, PERF_TYPE_TRACEPOINT, perf_event_attr},
    ioctls, perf_event_open,
};

/// Lets the event of this number run a loaded program, on all CPUs, until the
/// descriptor is closed.
///
/// # Errors
/// What the kernel says.
pub fn run_on_tracepoint(id: u64, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attributes = perf_event_attr {
        type_: PERF_TYPE_TRACEPOINT,
        size: size_of::<perf_event_attr>() as u32,
        config: id,
        ..perf_event_attr::default()
    };
    // A program belongs to the event, not to the CPU it was opened for
    // (kernel/trace/trace_event_perf.c, kernel/events/core.c).
    let (any_process, cpu, no_group) = (-1, 0, -1);
    // SAFETY: the attributes are valid for the call and carry their size.
    let descriptor = unsafe {
        perf_event_open(
            &raw mut attributes,
            any_process,
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC.into(),
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor that nobody else has.
    let event = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let program = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: both descriptors are open.
    check(unsafe { ioctls::SET_BPF(event.as_raw_fd(), program) })?;
    // SAFETY: the descriptor is open.
    check(unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) })?;
    Ok(event)
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
