//! Logs go to stderr. Records of the `log` facade (aya-log's among them) come
//! along.

use std::sync::OnceLock;

use anyhow::Context as _;
use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt, reload};

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The least severe records that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Level {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::ERROR,
            Level::Warn => Self::WARN,
            Level::Info => Self::INFO,
            Level::Debug => Self::DEBUG,
            Level::Trace => Self::TRACE,
        }
    }
}

/// What changes the level of a process that logs already.
static FILTER: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Starts logging; fails if it was started before.
pub fn start(level: Level, format: Format) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(LevelFilter::from(level));
    let layer = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        Format::Text => registry.with(layer).try_init()?,
        Format::Json => registry.with(layer.json().flatten_event(true)).try_init()?,
    }
    // It was not there before, or starting would have failed.
    let _set = FILTER.set(handle);
    Ok(())
}

/// Changes which records are written from now on.
///
/// # Errors
/// If logging was not started.
pub fn set_level(level: Level) -> anyhow::Result<()> {
    FILTER
        .get()
        .context("logging was not started")?
        .reload(LevelFilter::from(level))?;
    // Records of the `log` facade are held back there already.
    log::set_max_level(match level {
        Level::Error => log::LevelFilter::Error,
        Level::Warn => log::LevelFilter::Warn,
        Level::Info => log::LevelFilter::Info,
        Level::Debug => log::LevelFilter::Debug,
        Level::Trace => log::LevelFilter::Trace,
    });
    Ok(())
}
