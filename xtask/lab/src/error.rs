//! What can go wrong in the lab.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Result of the lab's functions.
pub type Result<T> = std::result::Result<T, LabError>;

/// Why a virtual server, or something done with it, failed. The text names
/// what was tried and where; what the machines themselves said is appended.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("interrupted")]
    Interrupted,
    #[error("{what}: {source}")]
    Io {
        what: String,
        source: std::io::Error,
    },
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Setup(#[from] xtask_setup::Error),
    #[error("{what}: no result after {} s{said}", limit.as_secs_f32())]
    TimedOut {
        what: String,
        limit: Duration,
        /// Ends of logs that may tell why.
        said: String,
    },
    #[error("{what}{said}")]
    Failed {
        what: String,
        /// Ends of logs that may tell why.
        said: String,
    },
}

impl LabError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn path(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        Self::io(path.display().to_string())
    }

    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self::Failed {
            what: what.into(),
            said: String::new(),
        }
    }

    pub(crate) fn timed_out(what: impl Into<String>, limit: Duration) -> Self {
        Self::TimedOut {
            what: what.into(),
            limit,
            said: String::new(),
        }
    }

    /// Says what it is about. An interruption is about everything.
    pub(crate) fn about(mut self, subject: &str) -> Self {
        match &mut self {
            Self::Interrupted | Self::Setup(_) => {}
            Self::Invalid(what)
            | Self::Io { what, .. }
            | Self::TimedOut { what, .. }
            | Self::Failed { what, .. } => what.insert_str(0, &format!("{subject}: ")),
        }
        self
    }

    /// Appends a remark, before the logs.
    pub(crate) fn with_note(mut self, note: &str) -> Self {
        if let Self::TimedOut { said, .. } | Self::Failed { said, .. } = &mut self {
            said.push_str(note);
        }
        self
    }

    /// Appends what some logs say, unless that is told already.
    pub(crate) fn with_logs(mut self, logs: &[Log]) -> Self {
        if let Self::TimedOut { said, .. } | Self::Failed { said, .. } = &mut self
            && !said.contains(LOG_TITLE)
        {
            said.extend(logs.iter().map(Log::tail));
        }
        self
    }
}

/// Begins each log in an error.
const LOG_TITLE: &str = "\n--- end of the log of ";

/// A log that somebody else writes.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) of: String,
    pub(crate) path: PathBuf,
}

impl Log {
    /// The end of the log, with a title; nothing if there is none.
    fn tail(&self) -> String {
        // A kernel panic, with its trace of calls, takes about fifty.
        const LINES: usize = 70;
        let bytes = std::fs::read(&self.path).unwrap_or_default();
        let text = printable(&String::from_utf8_lossy(&bytes));
        let lines: Vec<_> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        if lines.is_empty() {
            return String::new();
        }
        let shown = &lines[lines.len().saturating_sub(LINES)..];
        format!("{LOG_TITLE}{}:\n{}", self.of, shown.join("\n"))
    }
}

/// Firmware and kernels write terminal control sequences to a serial console;
/// shown to a person they would move his cursor.
fn printable(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_appended_once_and_without_control_characters() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "first\r\n\x1b[2J\nlast\n").unwrap();
        let logs = [Log {
            of: "QEMU".to_owned(),
            path: file.path().to_owned(),
        }];
        let error = LabError::failed("boot").with_logs(&logs).with_logs(&logs);
        let text = error.to_string();
        assert_eq!(text, "boot\n--- end of the log of QEMU:\nfirst\n[2J\nlast");
    }

    #[test]
    fn an_empty_or_missing_log_says_nothing() {
        let log = Log {
            of: "QEMU".to_owned(),
            path: "/nonexistent/log".into(),
        };
        assert_eq!(
            LabError::failed("boot").with_logs(&[log]).to_string(),
            "boot"
        );
    }
}
