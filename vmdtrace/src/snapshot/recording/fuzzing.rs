//! What the fuzz target `recording` runs, and the unit test that replays its
//! kept inputs: reading never panics, whatever is in the file, and what was read
//! is read again when it is written.

use super::{End, Ending, Header, Reader, Writer, frame};
use crate::snapshot::Snapshot;
use crate::snapshot::window::Window;

/// First byte of an input that is a file as it is; any other is followed by the
/// contents of frames, so that checksums do not keep the fuzzer out.
const AS_IT_IS: u8 = b'v';
/// Ends a frame's content in an input; JSON never has it.
const SEPARATOR: u8 = 0xff;

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
        Some(_) => framed(&input[1..]),
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
fn framed(frames: &[u8]) -> Vec<u8> {
    let mut file = match Writer::new(Vec::new(), &Header::default()) {
        Ok(writer) => writer.finish(None).unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    // Without the end.
    let end = file
        .iter()
        .rposition(|&byte| byte == frame::Kind::End.byte());
    file.truncate(end.unwrap_or_default());
    for part in frames.split(|&byte| byte == SEPARATOR) {
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
    use super::super::template::Template;
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
        assert!(count > 3, "{count}");
    }

    #[test]
    fn a_framed_input_reaches_the_snapshots() {
        let input = std::fs::read(corpus().join("difference")).unwrap();
        let file = framed(&input[1..]);
        let mut reader = Reader::new(&file[..]).unwrap();
        assert!(reader.next_snapshot().unwrap().is_some());
        assert!(reader.next_snapshot().unwrap().is_some());
        run(&input);
    }

    /// After this time the differences happen not to have the separator.
    const SECONDS_WITHOUT_SEPARATOR: u32 = 1;

    /// Small inputs to begin with.
    #[test]
    #[ignore = "makes the first inputs of the fuzz target"]
    fn make_the_first_inputs() {
        let mut server = Server::new(1, 1, 2);
        server.run(SECONDS_WITHOUT_SEPARATOR);
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
        let (template, numbers) = Template::split(&json(&first)).unwrap();
        let (_, next) = Template::split(&json(&second)).unwrap();
        let rates = vec![0; numbers.len()];
        let mut coded = vec![0];
        columns::encode(&next, &numbers, &rates, template.columns(), &mut coded);
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
                assert!(!content.contains(&SEPARATOR), "{name}: change the seed");
                input.push(*kind);
                input.extend_from_slice(content);
                input.push(SEPARATOR);
            }
            std::fs::write(corpus().join(name), input).unwrap();
        }
        let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
        writer.write_whole(&first).unwrap();
        let file = writer.finish(Some(1)).unwrap();
        std::fs::write(corpus().join("file"), file).unwrap();
    }
}
