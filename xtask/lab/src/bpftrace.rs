//! bpftrace in the guest: counts from a source that shares no code with the
//! daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::command::{Background, GuestCommand, Output};
use crate::error::{LabError, Result};
use crate::guest::Guest;
use crate::interrupt;

/// The map that counts the snapshots, and is printed last in each.
const MARK: &str = "@snapshot";
/// Compiling takes an emulated CPU its time.
const PATIENCE: Duration = Duration::from_secs(120);

/// The entries of a map by their key, whose parts are separated by commas; a map
/// without a key has the key "".
pub type Map = BTreeMap<String, u64>;

/// A bpftrace program that counts in the guest.
#[derive(Debug)]
pub struct Bpftrace {
    running: Background,
    /// Snapshots taken.
    taken: u64,
}

impl Bpftrace {
    /// Starts a program, and waits until its probes are attached.
    ///
    /// # Errors
    /// When bpftrace does not accept it, or the kernel does not: with what
    /// bpftrace says.
    pub fn start(guest: &Guest, program: &str) -> Result<Self> {
        let maps = maps(program);
        let prints: String = maps.iter().map(|map| format!("print({map}); ")).collect();
        // A signal is answered by a probe, which runs in the order it came in.
        let program = format!(
            "{program}\nself:signal:SIGUSR1 {{ {MARK} = count(); {prints}print({MARK}); }}"
        );
        let command = GuestCommand::new("bpftrace")
            .args(["-f", "json", "-B", "line", "-e", program.as_str()])
            .env("BPFTRACE_MAX_PROBES", "64");
        let running = guest.spawn(&command)?;
        interrupt::until("bpftrace to attach its probes", PATIENCE, || {
            running.check_running()?;
            let (stdout, _) = running.output()?;
            let text = String::from_utf8_lossy(&stdout);
            Ok(text.contains("\"attached_probes\"").then_some(()))
        })?;
        Ok(Self { running, taken: 0 })
    }

    /// What all maps hold now, by name with the `@`.
    ///
    /// # Errors
    /// When bpftrace ended or does not answer in time.
    pub fn snapshot(&mut self) -> Result<BTreeMap<String, Map>> {
        self.running.signal(Signal::SIGUSR1)?;
        self.taken += 1;
        let taken = self.taken;
        interrupt::until("bpftrace to print its maps", PATIENCE, || {
            self.running.check_running()?;
            let (stdout, _) = self.running.output()?;
            last_snapshot(&String::from_utf8_lossy(&stdout), taken)
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it does not end, or ended with an error.
    pub fn stop(self) -> Result<Output> {
        let output = self.running.stop(PATIENCE)?;
        if output.success() {
            return Ok(output);
        }
        Err(LabError::failed(format!(
            "bpftrace ended with {}: {}",
            output.exit,
            output.stderr_text()
        )))
    }
}

/// The maps that a program names.
fn maps(program: &str) -> Vec<String> {
    let mut maps: Vec<String> = program
        .split('@')
        .skip(1)
        .map(|rest| {
            let end = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            format!("@{}", &rest[..end])
        })
        .collect();
    maps.sort();
    maps.dedup();
    maps
}

/// The maps of snapshot number `wanted`; `None` while it is not complete.
fn last_snapshot(text: &str, wanted: u64) -> Result<Option<BTreeMap<String, Map>>> {
    let mut found = BTreeMap::new();
    // The last line may not be whole yet.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines().filter(|line| line.starts_with('{')) {
        let value: Value = serde_json::from_str(line)
            .map_err(|error| LabError::failed(format!("bpftrace wrote {line}: {error}")))?;
        if value["type"] == "lost_events" {
            return Err(LabError::failed(format!("bpftrace lost events: {line}")));
        }
        if value["type"] != "map" {
            continue;
        }
        for (name, content) in value["data"].as_object().into_iter().flatten() {
            let map = map(content)
                .ok_or_else(|| LabError::failed(format!("bpftrace wrote no counts: {line}")))?;
            found.insert(name.clone(), map);
        }
        let mark = found.get(MARK).and_then(|map| map.get(""));
        if mark == Some(&wanted) {
            found.remove(MARK);
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn map(content: &Value) -> Option<Map> {
    match content {
        Value::Object(entries) => entries
            .iter()
            .map(|(key, count)| Some((key.clone(), count.as_u64()?)))
            .collect(),
        other => Some([(String::new(), other.as_u64()?)].into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_found_in_a_program() {
        let program =
            "fexit:f { @a_1[args.x, retval] = count(); @b = count(); @a_1[0, 0] = count(); }";
        assert_eq!(maps(program), ["@a_1", "@b"]);
    }

    #[test]
    fn the_wanted_snapshot_is_read_once_it_is_complete() {
        let text = r#"{"type": "attached_probes", "data": {"probes": 3}}
{"type": "map", "data": {"@a": {"1,2": 5, "3,4": 6}}}
{"type": "map", "data": {"@b": 7}}
{"type": "map", "data": {"@snapshot": 1}}
{"type": "map", "data": {"@a": {"1,2": 8}}}
{"type": "map", "data": {"@b": 9}}
{"type": "map", "data": {"@snapshot": 2}}
"#;
        let first = last_snapshot(text, 1).unwrap().unwrap();
        assert_eq!(first["@a"]["3,4"], 6);
        assert_eq!(first["@b"][""], 7);
        assert!(!first.contains_key(MARK));
        let second = last_snapshot(text, 2).unwrap().unwrap();
        assert_eq!((second["@a"]["1,2"], second["@b"][""]), (8, 9));
        assert_eq!(last_snapshot(text, 3).unwrap(), None);
        assert_eq!(last_snapshot(&text[..text.len() - 2], 2).unwrap(), None);
        let lost = "{\"type\": \"lost_events\", \"data\": {\"events\": 3}}\n";
        assert!(last_snapshot(lost, 1).is_err());
    }
}
