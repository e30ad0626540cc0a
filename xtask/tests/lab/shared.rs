//! Something dear that several tests share: made by the first that asks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

enum State<T> {
    NotMade(Box<dyn FnOnce() -> T + Send>),
    Made(T),
    Failed,
}

/// Made once, used by many. Dropped with its last handle.
pub(crate) struct Shared<T>(Arc<Mutex<State<T>>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Shared<T> {
    pub(crate) fn new(make: impl FnOnce() -> T + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(State::NotMade(Box::new(make)))))
    }

    /// Panics if it could not be made: with the reason the first time, briefly
    /// after that.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&T) -> R) -> R {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = match std::mem::replace(&mut *state, State::Failed) {
            State::NotMade(make) => match catch_unwind(AssertUnwindSafe(make)) {
                Ok(made) => State::Made(made),
                Err(reason) => std::panic::resume_unwind(reason),
            },
            other => other,
        };
        match &*state {
            State::Made(made) => work(made),
            _ => panic!("what this test shares with an earlier one could not be made"),
        }
    }

    /// Takes it out, if it was made.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Failed) {
            State::Made(made) => Some(made),
            _ => None,
        }
    }
}
