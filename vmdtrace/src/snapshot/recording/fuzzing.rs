//! What the fuzz target `recording` runs, and the unit test that replays its
//! kept inputs: reading never panics, whatever is in the file, and what was read
//! is read again when it is written.

use super::{End, Ending, Header, MAGIC, Reader, VERSION, Writer, frame};
use crate::snapshot::Snapshot;
use crate::snapshot::window::Window;

/// First byte of an input that is a file as it is; any other is followed by the
/// contents of frames, so that checksums do not keep the fuzzer out.
const AS_IT_IS: u8 = b'v';
/// The frames are of version 1 of the format; of the newest with any other byte.
const VERSION_1: u8 = b'1';
/// Ends a frame's content in an input; JSON never has it, and differences hardly.
const SEPARATOR: [u8; 3] = *b"\xff\xfe\n";

/// Reads a file made from `input`.
///
/// # Panics
/// When the reader breaks a promise.
#[expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a broken promise is what the fuzzer looks for"
)]
pub fn run(input: &[u8]) {
    let file = match input.first() {
        None => return,
        Some(&AS_IT_IS) => input.to_vec(),
        Some(&VERSION_1) => framed(1, &input[1..]),
        Some(_) => framed(VERSION, &input[1..]),
    };
    let Ok(mut reader) = Reader::new(&file[..]) else {
        return;
    };
    let mut before: Option<Snapshot> = None;
    let mut writer = Writer::new(Vec::new(), reader.header()).expect("memory takes a header");
    let mut read = Vec::new();
    while let Some(snapshot) = reader.next_snapshot().expect("memory is read") {
        if let Some(before) = before.replace(snapshot.clone()) {
            // An error is as good as a difference.
            let _window = Window::between(&before, &snapshot);
        }
        if writer.write_whole(&snapshot).is_err() {
            return;
        }
        read.push(snapshot);
    }
    assert!(reader.ending().is_some(), "an end without an ending");
    let again = writer.finish(None).expect("memory takes an end");
    let mut reader = Reader::new(&again[..]).expect("what was written is read");
    for snapshot in &read {
        let again = reader.next_snapshot().expect("memory is read");
        assert_eq!(again.as_ref(), Some(snapshot));
    }
    assert_eq!(reader.next_snapshot().expect("memory is read"), None);
    match reader.ending() {
        Some(Ending::Whole(End { snapshots, .. })) => assert_eq!(*snapshots, read.len() as u64),
        other => panic!("{other:?}"),
    }
}

/// A whole file with these frames: each a kind and a content.
fn framed(version: u32, frames: &[u8]) -> Vec<u8> {
    let mut file = format!("{MAGIC}{version}\n").into_bytes();
    let header = serde_json::to_vec(&Header::default()).unwrap_or_default();
    let _too_long = frame::write(&mut file, frame::Kind::Header, &header);
    let mut rest = frames;
    while !rest.is_empty() {
        let mut places = rest.windows(SEPARATOR.len());
        let end = places.position(|it| it == SEPARATOR).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        rest = after.get(SEPARATOR.len()..).unwrap_or_default();
        if let Some((&kind, content)) = part.split_first() {
            let _too_long = frame::write(&mut file, frame::Kind::from_byte(kind), content);
        }
    }
    file
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::columns;
    use super::super::template::{Apart, Template};
    use super::super::{Facts, Moment};
    use super::*;
    use crate::host::activity::Activity;
    use crate::snapshot::recording::synthetic::Server;

    fn corpus() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/recording")
    }

    #[test]
    fn kept_inputs() {
        let mut count = 0;
        for entry in std::fs::read_dir(corpus()).unwrap() {
            run(&std::fs::read(entry.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 4, "{count}");
    }

    #[test]
    fn a_framed_input_reaches_the_snapshots() {
        for (name, version) in [("difference", VERSION), ("difference-1", 1)] {
            let input = std::fs::read(corpus().join(name)).unwrap();
            let file = framed(version, &input[1..]);
            let mut reader = Reader::new(&file[..]).unwrap();
            assert!(reader.next_snapshot().unwrap().is_some());
            assert!(reader.next_snapshot().unwrap().is_some(), "{name}");
            run(&input);
        }
    }

    /// Small inputs to begin with.
    #[test]
    #[ignore = "makes the first inputs of the fuzz target"]
    fn make_the_first_inputs() {
        let mut server = Server::new(1, 1, 2);
        server.run(1);
        let small = |server: &Server| {
            let mut snapshot = server.snapshot();
            snapshot.topology.disks.clear();
            snapshot.topology.controllers.clear();
            snapshot.counters.lines.truncate(1);
            snapshot.counters.samples.clear();
            snapshot.probes.truncate(1);
            snapshot.activity = Some(Activity::default());
            snapshot
        };
        let first = small(&server);
        server.run(1);
        let second = small(&server);
        let facts = serde_json::to_vec(&Facts {
            host: std::borrow::Cow::Borrowed(&first.host),
            topology: std::borrow::Cow::Borrowed(&first.topology),
        })
        .unwrap();
        let json = |snapshot| serde_json::to_string(&Moment::of(snapshot)).unwrap();
        let (template, numbers) = Template::split(&json(&first), Apart::ByKind).unwrap();
        let (_, next) = Template::split(&json(&second), Apart::ByKind).unwrap();
        let mut before = numbers.clone();
        let mut past = columns::Past::new(template.columns());
        let mut coded = vec![0];
        columns::encode(
            &next,
            &mut before,
            &mut past,
            template.columns(),
            &mut coded,
        );
        let whole = [b"\0", json(&first).as_bytes()].concat();
        type Frame<'a> = (u8, &'a [u8]);
        let frames: [(&str, &[Frame<'_>]); 3] = [
            ("facts", &[(b'F', &facts)]),
            ("whole", &[(b'F', &facts), (b'S', &whole), (b'E', b"{}")]),
            (
                "difference",
                &[(b'F', &facts), (b'S', &whole), (b'D', &coded)],
            ),
        ];
        for (name, frames) in frames {
            let mut input = b"f".to_vec();
            for (kind, content) in frames {
                let mut places = content.windows(SEPARATOR.len());
                assert!(places.all(|it| it != SEPARATOR), "{name}: change the seed");
                input.push(*kind);
                input.extend_from_slice(content);
                input.extend_from_slice(&SEPARATOR);
            }
            std::fs::write(corpus().join(name), input).unwrap();
        }
        let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
        writer.write_whole(&first).unwrap();
        let file = writer.finish(Some(1)).unwrap();
        std::fs::write(corpus().join("file"), file).unwrap();
    }
}
