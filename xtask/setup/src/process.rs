//! Running other programs, with errors that show what they said.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, IoContext, Result};

/// As much of a failed program's error output as is shown.
const SHOWN_LINES: usize = 15;
/// As many bytes of a command line are shown, and the argument that exceeds them.
const SHOWN_COMMAND: usize = 200;
/// How often a running program is looked at.
const POLL: Duration = Duration::from_millis(200);

/// The program's path, if PATH has it.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|candidate| is_executable(candidate))
}

pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Runs the command, captures its output, and fails if it fails.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    if !output.status.success() {
        return Err(failed(command, &output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs the command and captures its output, whatever its exit status.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .output()
        .context("run", Path::new(command.get_program()))
}

/// Runs the command with the caller's stderr; its stdout goes to stderr too.
pub(crate) fn run_visibly(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .context("run", Path::new(command.get_program()))?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::Command {
            command: describe(command),
            status: status.to_string(),
            output: String::new(),
        })
    }
}

/// Runs the command with its output in the file `log` (so that a full pipe
/// never blocks it) and calls `tick` while it runs. After `limit` it is killed.
pub(crate) fn run_watched(
    command: &mut Command,
    log: &Path,
    limit: Option<Duration>,
    mut tick: impl FnMut(),
) -> Result<()> {
    let file = std::fs::File::create(log).context("create", log)?;
    let also = file.try_clone().context("open", log)?;
    let mut child = Running(
        command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(also)
            .spawn()
            .context("run", Path::new(command.get_program()))?,
    );
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child
            .0
            .try_wait()
            .context("wait for", Path::new(command.get_program()))?
        {
            break status;
        }
        if limit.is_some_and(|limit| started.elapsed() > limit) {
            return Err(Error::Command {
                command: describe(command),
                status: format!("stopped after {} s", started.elapsed().as_secs()),
                output: tail(&read_lossy(log)),
            });
        }
        tick();
        std::thread::sleep(POLL);
    };
    tick();
    if status.success() {
        Ok(())
    } else {
        Err(Error::Command {
            command: describe(command),
            status: status.to_string(),
            output: tail(&read_lossy(log)),
        })
    }
}

/// A child that does not outlive an early return.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            // It may have ended in between; there is nobody left to tell.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

pub(crate) fn failed(command: &Command, output: &Output) -> Error {
    Error::Command {
        command: describe(command),
        status: output.status.to_string(),
        output: tail(&String::from_utf8_lossy(&output.stderr)),
    }
}

/// The command line for a message.
pub(crate) fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        if text.len() > SHOWN_COMMAND {
            text.push_str(" ...");
            break;
        }
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

fn read_lossy(path: &Path) -> String {
    std::fs::read(path).map_or_else(
        |_| String::new(),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    )
}

/// The last lines of a program's output.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_shows_what_it_said() {
        let error =
            capture(Command::new("sh").args(["-c", "echo first >&2; echo last >&2; exit 3"]))
                .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("first\nlast"), "{text}");
        assert!(text.contains("exit status: 3"), "{text}");
    }

    #[test]
    fn a_command_past_its_limit_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let started = Instant::now();
        let error = run_watched(
            Command::new("sh").args(["-c", "echo begun; exec sleep 60"]),
            &log,
            Some(Duration::from_millis(300)),
            || {},
        )
        .unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(30));
        assert!(error.to_string().contains("stopped after"), "{error}");
        assert!(error.to_string().contains("begun"), "{error}");
    }

    #[test]
    fn long_command_lines_are_cut() {
        let text = describe(Command::new("apt-get").args((0..100).map(|n| format!("package-{n}"))));
        assert!(
            text.starts_with("apt-get package-0 package-1 ") && text.ends_with(" ..."),
            "{text}"
        );
        assert!(text.len() < SHOWN_COMMAND + 20, "{text}");
        assert_eq!(describe(Command::new("ls").arg("-l")), "ls -l");
    }

    #[test]
    fn only_the_end_of_long_output_is_shown() {
        let text: String = (0..100).map(|n| format!("line {n}\n\n")).collect();
        let shown = tail(&text);
        assert_eq!(shown.lines().count(), SHOWN_LINES);
        assert!(shown.ends_with("line 99"));
    }

    #[test]
    fn a_missing_program_is_not_found() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-here").is_none());
    }
}
