//! Whole recordings.

use std::io::{self, Write};

use proptest::prelude::*;

use super::synthetic::{Server, recorded};
use super::*;

/// A file of version 1, made when that was new.
const VERSION_1: &[u8] = include_bytes!("../../../tests/recordings/version-1.vmdtrace");
const VERSION_2: &[u8] = include_bytes!("../../../tests/recordings/version-2.vmdtrace");

fn read_all(bytes: &[u8]) -> (Vec<Snapshot>, Ending) {
    let mut reader = Reader::new(bytes).unwrap();
    let mut snapshots = Vec::new();
    while let Some(snapshot) = reader.next_snapshot().unwrap() {
        snapshots.push(snapshot);
    }
    let ending = reader.ending().unwrap().clone();
    // And it stays there.
    assert_eq!(reader.next_snapshot().unwrap(), None);
    (snapshots, ending)
}

fn whole(snapshots: u64) -> Ending {
    Ending::Whole(End {
        snapshots,
        command_status: None,
    })
}

#[test]
fn what_was_written_is_read() {
    let mut server = Server::new(3, 4, 3);
    let (bytes, written) = recorded(&mut server, Detail::Lines, 8);
    let (read, ending) = read_all(&bytes);
    assert_eq!(read, written);
    assert_eq!(ending, whole(8));
    let header = Reader::new(&bytes[..]).unwrap().header().clone();
    assert_eq!(header.boot_unix_ns, 1_700_000_000_000_000_000);
}

#[test]
fn sums_begin_with_a_whole_snapshot_and_have_one_again_in_time() {
    let mut server = Server::new(2, 2, 2);
    let (bytes, written) = recorded(&mut server, Detail::Sums, 303);
    let (read, ending) = read_all(&bytes);
    assert_eq!(ending, whole(303));
    let mut wholes = Vec::new();
    for (at, (read, written)) in read.iter().zip(&written).enumerate() {
        match read.detail {
            Detail::Lines => {
                assert_eq!(read, written);
                wholes.push(at);
            }
            Detail::Sums => assert_eq!(read, &written.sums()),
        }
    }
    // Noise decides which side of five minutes the 300th second is on.
    assert!(matches!(wholes[..], [0, 300 | 301]), "{wholes:?}");
}

/// Disks, lines and whole devices that come and go, values that appear.
#[test]
fn what_changes_in_between_is_read_too() {
    let mut server = Server::new(2, 2, 2);
    let mut snapshots = Vec::new();
    for step in 0..6 {
        server.run(1);
        let mut snapshot = server.snapshot();
        match step {
            1 => drop(snapshot.topology.disks.pop()),
            2 => drop(snapshot.counters.lines.pop()),
            3 => snapshot.activity = None,
            4 => snapshot.probes[0].reason = Some("a \"reason\" {[1,2]}: 7".to_owned()),
            _ => {}
        }
        snapshots.push(snapshot);
    }
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    for snapshot in &snapshots {
        writer.write_whole(snapshot).unwrap();
    }
    assert_eq!(writer.snapshots(), 6);
    let bytes = writer.bytes();
    let out = writer.finish(Some(130)).unwrap();
    assert!(bytes < out.len() as u64);
    let (read, ending) = read_all(&out);
    assert_eq!(read, snapshots);
    let Ending::Whole(end) = ending else {
        panic!("{ending:?}")
    };
    assert_eq!(end.command_status, Some(130));
}

#[test]
fn cut_anywhere_it_reads_up_to_the_last_whole_snapshot() {
    let mut server = Server::new(1, 2, 0);
    let (bytes, written) = recorded(&mut server, Detail::Lines, 4);
    // How long the file was after each Snapshot.
    let mut lengths = Vec::new();
    for count in 1..=4 {
        let mut writer =
            Writer::new(Vec::new(), Reader::new(&bytes[..]).unwrap().header()).unwrap();
        for snapshot in &written[..count] {
            writer.write(snapshot).unwrap();
        }
        lengths.push(writer.bytes() as usize);
    }
    for length in 0..bytes.len() {
        match Reader::new(&bytes[..length]) {
            Err(ReadError::NotARecording) => assert!(length < 21, "{length}"),
            Err(ReadError::Empty) => assert!(length < lengths[0], "{length}"),
            Err(error) => panic!("{length}: {error}"),
            Ok(_) => {
                let (read, ending) = read_all(&bytes[..length]);
                let complete = lengths.iter().filter(|&&until| until <= length).count();
                assert_eq!(read, written[..complete], "{length}");
                let Ending::Cut { at } = ending else {
                    panic!("{length}: {ending:?}")
                };
                assert!(at as usize <= length);
                assert!(
                    ending
                        .to_string()
                        .contains(&format!("cut off at byte {at}"))
                );
            }
        }
    }
}

#[test]
fn a_flipped_bit_is_noticed() {
    let mut server = Server::new(1, 2, 0);
    let (bytes, written) = recorded(&mut server, Detail::Lines, 3);
    let first = bytes.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    for at in first..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        if Reader::new(&damaged[..]).is_err() {
            continue;
        }
        let (read, ending) = read_all(&damaged);
        assert!(
            matches!(ending, Ending::Damaged { .. } | Ending::Cut { .. }),
            "{at}: {ending:?}"
        );
        assert_eq!(read, written[..read.len()]);
    }
}

/// Frames of kinds that are not known yet, and fields, are skipped.
#[test]
fn what_a_newer_program_adds_is_skipped() {
    let mut server = Server::new(1, 1, 0);
    server.run(1);
    let snapshot = server.snapshot();
    let mut out = format!("{MAGIC}{VERSION}\n").into_bytes();
    frame::write(&mut out, frame::Kind::Header, br#"{"shape":{"round":[1]}}"#).unwrap();
    frame::write(&mut out, frame::Kind::Unknown, b"anything").unwrap();
    let mut facts = serde_json::to_value(Facts {
        host: Cow::Borrowed(&snapshot.host),
        topology: Cow::Borrowed(&snapshot.topology),
    })
    .unwrap();
    facts["topology"]["disks"][0]["colour"] = serde_json::json!({"red": 1});
    frame::write(&mut out, frame::Kind::Facts, facts.to_string().as_bytes()).unwrap();
    let mut moment = serde_json::to_value(Moment::of(&snapshot)).unwrap();
    moment["counters"]["lines"][0]["placement"] = serde_json::json!([1, 2.5, -3, null]);
    let content = [b"\0", moment.to_string().as_bytes()].concat();
    frame::write(&mut out, frame::Kind::Whole, &content).unwrap();
    let (read, ending) = read_all(&out);
    assert_eq!(read, [snapshot]);
    assert_eq!(
        ending,
        Ending::Cut {
            at: out.len() as u64
        }
    );
}

#[test]
fn all_versions_stay_readable() {
    for (version, file, completions) in [
        (1, VERSION_1, VERSION_1_COMPLETIONS),
        (2, VERSION_2, VERSION_2_COMPLETIONS),
    ] {
        let first = format!("{MAGIC}{version}\n");
        assert!(file.starts_with(first.as_bytes()), "{version}");
        is_test_data(file, completions);
    }
}

fn is_test_data(file: &[u8], expected: u64) {
    let (read, ending) = read_all(file);
    assert_eq!(ending, whole(5));
    assert_eq!(read.len(), 5);
    let details: Vec<Detail> = read.iter().map(|it| it.detail).collect();
    use Detail::{Lines, Sums};
    assert_eq!(details, [Lines, Sums, Sums, Sums, Lines]);
    let last = &read[4];
    assert_eq!(last.topology.disks.len(), 2);
    let window = crate::snapshot::window::Window::between(&read[0], last).unwrap();
    let completions: u64 = window
        .counters
        .lines
        .iter()
        .map(|it| it.counts.completions)
        .sum();
    assert_eq!(completions, expected);
}

/// What the files were written with.
const VERSION_1_COMPLETIONS: u64 = 4_001_682;
const VERSION_2_COMPLETIONS: u64 = 4_000_636;

/// Writes the file of the test above; not for a version that has one.
#[test]
#[ignore = "makes test data, for a new version of the format"]
fn make_the_file_of_this_version() {
    let mut server = Server::new(2, 2, 2);
    let header = Header {
        created_by: "vmdtrace 0.1.0".to_owned(),
        boot_unix_ns: 1_790_000_000_000_000_000,
        every_ns: 1_000_000_000,
        detail: Detail::Sums,
        note: Some("test data".to_owned()),
    };
    let mut writer = Writer::new(Vec::new(), &header).unwrap();
    for _ in 0..4 {
        writer.write(&server.snapshot()).unwrap();
        server.run(1);
    }
    writer.write_whole(&server.snapshot()).unwrap();
    let lines = server.snapshot().counters.lines;
    println!(
        "{}",
        lines.iter().map(|it| it.counts.completions).sum::<u64>()
    );
    let path = format!("version-{VERSION}.vmdtrace");
    std::fs::write(path, writer.finish(None).unwrap()).unwrap();
}

#[test]
fn what_is_no_recording_says_so() {
    let error = |bytes: &[u8]| Reader::new(bytes).unwrap_err().to_string();
    assert!(error(b"").contains("no recording"));
    assert!(error(b"PNG").contains("vmdtrace record"));
    assert!(error(&[b'v'; 100]).contains("no recording"));
    assert!(error(b"vmdtrace recording 0\n").contains("no recording"));
    assert!(error(b"vmdtrace recording 3\n").contains("version 3 of the format"));
    assert!(error(b"vmdtrace recording 1\n").contains("before its first snapshot"));
}

/// A length that claims gigabytes, and content that unpacks to gigabytes.
#[test]
fn sizes_are_bounded() {
    let mut server = Server::new(1, 1, 0);
    let (bytes, written) = recorded(&mut server, Detail::Lines, 1);
    let end = bytes.len();
    let mut long = bytes.clone();
    // Over the end's frame.
    let at = bytes
        .windows(5)
        .rposition(|it| it[0] == b'E' && it[3..5] == [0, 0])
        .unwrap();
    long[at + 1..at + 5].copy_from_slice(&u32::MAX.to_le_bytes());
    let (read, ending) = read_all(&long);
    assert_eq!(read, written);
    let what = "a frame longer than any".to_owned();
    assert_eq!(
        ending,
        Ending::Damaged {
            at: at as u64,
            what
        }
    );
    let mut bomb = bytes[..at].to_vec();
    let error = frame::write(
        &mut bomb,
        frame::Kind::Facts,
        &vec![b' '; MAX_FRAME_BYTES + 1],
    );
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("more than a frame may hold")
    );
    assert_eq!(bomb.len(), at);
    assert!(at < end);
}

/// Takes so many bytes, then fails as a full disk does.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let written = bytes.len().min(self.0);
        self.0 -= written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let mut writer = Writer::new(Full(400), &Header::default()).unwrap();
    let snapshot = Server::new(3, 3, 0).snapshot();
    let error = writer.write(&snapshot).unwrap_err();
    assert!(matches!(error, WriteError::Io(_)), "{error}");
}

/// The sizes that docs/recordings.md promises.
#[test]
fn an_hour_is_small() {
    /// Enough to know the size of the rest.
    const SECONDS: u64 = 20;
    for (disks, cpus, vectors) in [(12, 6, 8), (12, 6, 0), (12, 64, 33), (12, 64, 0)] {
        let mut sizes = Vec::new();
        for (detail, limit) in [(Detail::Sums, 2_000_000), (Detail::Lines, 20_000_000)] {
            let mut server = Server::new(disks, cpus, vectors);
            server.run(2);
            let header = Header {
                detail,
                ..Header::default()
            };
            let mut writer = Writer::new(Vec::new(), &header).unwrap();
            // The first Snapshot of each stream, and a first difference.
            for _ in 0..3 {
                writer.write(&server.snapshot()).unwrap();
                server.run(1);
            }
            let first = writer.bytes();
            for _ in 0..SECONDS {
                writer.write(&server.snapshot()).unwrap();
                server.run(1);
            }
            let second = (writer.bytes() - first) as f64 / SECONDS as f64;
            // Whole ones among sums: each is the difference to the one before.
            let before = writer.bytes();
            writer.write_whole(&server.snapshot()).unwrap();
            let whole = match detail {
                Detail::Sums => (writer.bytes() - before) as f64 * 12.0,
                Detail::Lines => 0.0,
            };
            let hour = (first as f64 + 3600.0 * second + whole) as u64;
            assert!(
                hour < limit,
                "{disks} x {cpus}, {vectors} vectors, {detail:?}: {hour} bytes"
            );
            sizes.push(format!("{detail:?} {hour}"));
        }
        println!("{disks} disks, {cpus} CPUs, {vectors} vectors: {sizes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The fuzz target `recording` does the same with better luck.
    #[test]
    fn any_bytes_are_read_or_refused(
        frames in proptest::collection::vec(
            (
                prop_oneof![Just("H"), Just("F"), Just("S"), Just("D"), Just("E"), Just("x")],
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..40),
                    "[\0\x01]?\\PC{0,20}".prop_map(String::into_bytes),
                ],
            ),
            0..6,
        ),
        tail in proptest::collection::vec(any::<u8>(), 0..30),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut server = Server::new(1, 1, 0);
        let (mut bytes, _) = recorded(&mut server, Detail::Sums, 2);
        let keep = cut.index(bytes.len() + 1);
        bytes.truncate(keep.max(21));
        for (kind, content) in frames {
            let kind = match kind {
                "H" => frame::Kind::Header,
                "F" => frame::Kind::Facts,
                "S" => frame::Kind::Whole,
                "D" => frame::Kind::Difference,
                "E" => frame::Kind::End,
                _ => frame::Kind::Unknown,
            };
            frame::write(&mut bytes, kind, &content).unwrap();
        }
        bytes.extend(tail);
        if let Ok(mut reader) = Reader::new(&bytes[..]) {
            while reader.next_snapshot().unwrap().is_some() {}
            prop_assert!(reader.ending().is_some());
        }
    }
}
