//! What systemd is told of the daemon's state, where systemd started it and asks
//! (sd_notify(3)). Elsewhere all of this does nothing.

use std::future::Future;
use std::time::Duration;

use sd_notify::NotifyState;

/// All that was to be done at the start is done.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The settings are being read again; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("reloading without a time stamp: {error}"),
    }
}

/// The daemon is about to end.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// How often the daemon must show that it works, if anybody wants to know.
#[must_use]
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|it| !it.is_zero())
}

/// Shows, three times in `limit`, that the daemon works: each time only once
/// `works` has found out that it does. If that never ends, or it does not,
/// systemd waits in vain and starts the daemon anew.
pub async fn feed_watchdog<F: Future<Output = bool>>(
    limit: Duration,
    mut works: impl FnMut() -> F,
) {
    loop {
        tokio::time::sleep(limit / 3).await;
        if works().await {
            tell(&[NotifyState::Watchdog]);
        } else {
            tracing::error!("the daemon cannot answer: leaving it to the watchdog");
        }
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot tell systemd {state:?}: {error}");
    }
}
