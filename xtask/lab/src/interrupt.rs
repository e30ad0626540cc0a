//! Ctrl-C, SIGTERM and SIGHUP end every wait of the lab with
//! [`LabError::Interrupted`], so that guards clean up as after any error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{LabError, Result};

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// How often a wait looks up.
const POLL: Duration = Duration::from_millis(50);

/// From now on these signals are noted instead of ending the process.
///
/// # Errors
/// When the kernel refuses a handler.
pub fn listen() -> Result<()> {
    if REQUESTED.get().is_some() {
        return Ok(());
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(LabError::io("cannot handle signals"))?;
    }
    // Should two threads come here at once, the second's flag is simply unused.
    REQUESTED.get_or_init(|| flag);
    Ok(())
}

/// An error once one of the signals has come.
///
/// # Errors
/// [`LabError::Interrupted`], then and only then.
pub fn check() -> Result<()> {
    match REQUESTED.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => Err(LabError::Interrupted),
        _ => Ok(()),
    }
}

/// Returns once one of the signals has come. It is then forgotten: what follows
/// is the orderly end, which a second signal breaks off.
pub fn wait() {
    while check().is_ok() {
        std::thread::sleep(POLL);
    }
    if let Some(flag) = REQUESTED.get() {
        flag.store(false, Ordering::Relaxed);
    }
}

/// Asks again and again until `ready` gives a value.
///
/// # Errors
/// The first error of `ready`, an interruption, or [`LabError::TimedOut`].
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        check()?;
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if Instant::now() >= end {
            return Err(LabError::timed_out(what, limit));
        }
        std::thread::sleep(POLL);
    }
}
