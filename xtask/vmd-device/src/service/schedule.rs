//! Commands in service: when each is due, and which is next.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::{Nanos, Pacer, Service, Start};

/// The commands that one disk serves.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    service: Service,
    pacer: Pacer,
    in_service: BinaryHeap<Reverse<Entry<T>>>,
    started: u64,
    stalled: bool,
    /// When it last stopped being stalled; nothing can have completed before.
    resumed: Nanos,
}

/// A command and when its latency is over; equals go in the order of their start.
#[derive(Debug)]
struct Entry<T> {
    ready: Nanos,
    sequence: u64,
    command: T,
}

impl<T> Schedule<T> {
    pub(crate) fn new(service: Service) -> Self {
        Self {
            service,
            pacer: Pacer::new(service.iops),
            in_service: BinaryHeap::new(),
            started: 0,
            stalled: false,
            resumed: 0,
        }
    }

    /// Changes the speed; commands in service keep their latency.
    pub(crate) fn set_service(&mut self, service: Service) {
        self.service = service;
        self.pacer.set(service.iops);
    }

    /// A stalled disk takes and completes nothing.
    pub(crate) fn set_stalled(&mut self, stalled: bool, now: Nanos) {
        self.stalled = stalled;
        self.resumed = now;
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    pub(crate) fn in_service(&self) -> usize {
        self.in_service.len()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.in_service.len() < self.service.parallelism as usize
    }

    /// Starts a command.
    pub(crate) fn start(&mut self, command: T, start: Start<'_>) {
        let Start {
            at, extra, random, ..
        } = start;
        let latency = self.service.latency.sample(random);
        let extra = extra.sample(random);
        self.started += 1;
        self.in_service.push(Reverse(Entry {
            ready: at.saturating_add(latency).saturating_add(extra),
            sequence: self.started,
            command,
        }));
    }

    /// When the next command completes, as far as this disk decides.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        if self.stalled {
            return None;
        }
        let Reverse(entry) = self.in_service.peek()?;
        Some(self.pacer.earliest(entry.ready.max(self.resumed)))
    }

    /// Completes the next command at `at`.
    pub(crate) fn finish(&mut self, at: Nanos) -> Option<T> {
        let Reverse(entry) = self.in_service.pop()?;
        self.pacer.pass(at);
        Some(entry.command)
    }

    /// Keeps only some commands, and returns the others.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut dropped = Vec::new();
        let entries = std::mem::take(&mut self.in_service).into_vec();
        for Reverse(entry) in entries {
            if keep(&entry.command) {
                self.in_service.push(Reverse(entry));
            } else {
                dropped.push(entry.command);
            }
        }
        dropped
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.ready, self.sequence).cmp(&(other.ready, other.sequence))
    }
}
