//! What vmdtrace makes of the recordings of the demo's runs.

use std::path::{Path, PathBuf};

use xtask_lab::Artifacts;
use xtask_lab::experiment::{Mode, Run};

/// A recorded run.
#[derive(Clone, Debug)]
pub(super) struct Recording {
    mode: Mode,
    disks: usize,
    file: PathBuf,
}

impl Recording {
    pub(super) fn of(run: &Run, file: PathBuf) -> Self {
        Self {
            mode: run.mode,
            disks: run.disks_busy,
            file,
        }
    }

    fn name(&self) -> String {
        let plural = if self.disks == 1 { "" } else { "s" };
        format!("{}, {} disk{plural}", self.mode.name(), self.disks)
    }
}

/// The diagnosis of each, then the pairs that differ in one thing: the mode, or
/// how many disks are read.
pub(super) fn of(artifacts: &Artifacts, recordings: &[Recording]) -> xtask_lab::Result<String> {
    let mut text = String::new();
    for recording in recordings {
        let title = format!("Diagnosis of {}", recording.name());
        let said = artifacts.vmdtrace_says(&["diagnose", "--from"], &[&recording.file])?;
        chapter(&mut text, &title, &said);
    }
    for (one, other) in pairs(recordings) {
        let title = format!("Comparison of {} and {}", one.name(), other.name());
        let files: [&Path; 2] = [&one.file, &other.file];
        let said = artifacts.vmdtrace_says(&["compare"], &files)?;
        chapter(&mut text, &title, &said);
    }
    text.push_str(
        "The recordings are of an emulated device: what is said of times and of CPUs that are full \
         is true of the emulation alone.",
    );
    Ok(text)
}

fn chapter(text: &mut String, title: &str, said: &str) {
    text.push_str(&format!("== {title} ==\n\n{}\n\n", said.trim_end()));
}

fn pairs(recordings: &[Recording]) -> Vec<(&Recording, &Recording)> {
    let mut pairs = Vec::new();
    for (index, one) in recordings.iter().enumerate() {
        for other in &recordings[index + 1..] {
            if (one.mode == other.mode) != (one.disks == other.disks) {
                pairs.push((one, other));
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_differ_in_one_thing() {
        let recording = |mode, disks| Recording {
            mode,
            disks,
            file: PathBuf::new(),
        };
        let all = [
            recording(Mode::Remap, 1),
            recording(Mode::Remap, 12),
            recording(Mode::Bypass, 1),
            recording(Mode::Bypass, 12),
        ];
        let names: Vec<_> = pairs(&all)
            .into_iter()
            .map(|(one, other)| format!("{} / {}", one.name(), other.name()))
            .collect();
        assert_eq!(
            names,
            [
                "remap, 1 disk / remap, 12 disks",
                "remap, 1 disk / bypass, 1 disk",
                "remap, 12 disks / bypass, 12 disks",
                "bypass, 1 disk / bypass, 12 disks"
            ]
        );
        // With one disk both loads are the same.
        assert!(pairs(&[recording(Mode::Remap, 1), recording(Mode::Remap, 1)]).is_empty());
    }
}
