//! The device with the thread that lets things happen when they are due, while
//! the guest asks for nothing.

use std::num::NonZero;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::thread::set_current_timer_slack;

use crate::connection::lock;
use crate::device::Device;
use crate::service::Nanos;

/// The device as several threads use it.
#[derive(Debug)]
pub(crate) struct Scheduler {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    device: Device,
    /// When the thread will wake by itself.
    alarm: Nanos,
    ended: bool,
}

impl Scheduler {
    pub(crate) fn new(device: Device) -> Self {
        Self {
            state: Mutex::new(State {
                device,
                alarm: Nanos::MAX,
                ended: false,
            }),
            wake: Condvar::new(),
        }
    }

    /// Uses the device, and has the thread awake in time for what that started.
    pub(crate) fn with<R>(&self, action: impl FnOnce(&mut Device) -> R) -> R {
        let mut state = lock(&self.state);
        let result = action(&mut state.device);
        if let Some(due) = state.device.next_due()
            && due < state.alarm
        {
            state.alarm = due;
            self.wake.notify_one();
        }
        result
    }

    /// The thread: sleeps until something is due, until `end` is called.
    pub(crate) fn run(&self) {
        // By default the kernel may wake it 50 us late, to save energy: as long as
        // a disk takes. Without that the device is only slower than it was told.
        let _ = set_current_timer_slack(NonZero::new(1));
        let mut state = lock(&self.state);
        while !state.ended {
            state.device.advance();
            let due = state.device.next_due();
            state.alarm = due.unwrap_or(Nanos::MAX);
            state = match due {
                Some(due) => {
                    let time = Duration::from_nanos(due.saturating_sub(state.device.now()));
                    let woken = self.wake.wait_timeout(state, time);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Ends the thread. What is in service stays there.
    pub(crate) fn end(&self) {
        lock(&self.state).ended = true;
        self.wake.notify_one();
    }
}
