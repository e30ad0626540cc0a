//! The device's time.

use std::time::Instant;

use crate::service::Nanos;

/// Where the time comes from.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The time since this moment.
    Since(Instant),
    /// A time that a test sets.
    #[cfg(any(test, feature = "fuzzing"))]
    Set(std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self::Since(Instant::now())
    }

    pub(crate) fn now(&self) -> Nanos {
        match self {
            // Wraps after 584 years.
            Self::Since(start) => start.elapsed().as_nanos() as Nanos,
            #[cfg(any(test, feature = "fuzzing"))]
            Self::Set(now) => now.load(std::sync::atomic::Ordering::Relaxed),
        }
    }
}
