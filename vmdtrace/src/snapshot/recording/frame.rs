//! Frames: a kind, a length, a checksum, and packed content.
//!
//! ```text
//! kind  1 byte
//! length of the content in the file, 4 bytes, lowest first
//! CRC-32 of kind, length and content, 4 bytes, lowest first
//! content: 0 and the bytes themselves, or 1 and the bytes deflated
//! ```

use std::io::{self, Read, Write};

use super::MAX_FRAME_BYTES;

/// What is in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Header,
    Facts,
    /// A stream's number and a Snapshot's JSON.
    Whole,
    /// A stream's number and the numbers of its next Snapshot.
    Difference,
    End,
    /// Of a newer program: skipped.
    Unknown,
}

impl Kind {
    pub(super) fn from_byte(byte: u8) -> Self {
        match byte {
            b'H' => Self::Header,
            b'F' => Self::Facts,
            b'S' => Self::Whole,
            b'D' => Self::Difference,
            b'E' => Self::End,
            _ => Self::Unknown,
        }
    }

    pub(super) fn byte(self) -> u8 {
        match self {
            Self::Header => b'H',
            Self::Facts => b'F',
            Self::Whole => b'S',
            Self::Difference => b'D',
            Self::End => b'E',
            Self::Unknown => b'?',
        }
    }
}

const STORED: u8 = 0;
const DEFLATED: u8 = 1;
/// Of 10: twice as fast as the best, some hundredths larger.
const EFFORT: u8 = 7;
/// Kind, length, checksum.
const HEAD_BYTES: usize = 9;

/// Why there is no next frame.
#[derive(Debug)]
pub(super) enum FrameError {
    /// The file ends inside a frame.
    Cut,
    Damaged(&'static str),
    Io(io::Error),
}

fn checksum(kind: u8, length: [u8; 4], content: &[u8]) -> u32 {
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&[kind]);
    checksum.update(&length);
    checksum.update(content);
    checksum.finalize()
}

/// Writes one frame in a single call. Returns how many bytes it is in the file.
pub(super) fn write(out: &mut impl Write, kind: Kind, content: &[u8]) -> io::Result<u64> {
    let deflated = miniz_oxide::deflate::compress_to_vec(content, EFFORT);
    let (how, packed) = if deflated.len() < content.len() {
        (DEFLATED, deflated.as_slice())
    } else {
        (STORED, content)
    };
    if content.len() > MAX_FRAME_BYTES || packed.len() >= MAX_FRAME_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "{} bytes are more than a frame may hold ({MAX_FRAME_BYTES})",
                content.len()
            ),
        ));
    }
    let mut frame = Vec::with_capacity(HEAD_BYTES + 1 + packed.len());
    frame.extend_from_slice(&[0; HEAD_BYTES]);
    frame.push(how);
    frame.extend_from_slice(packed);
    let length = ((frame.len() - HEAD_BYTES) as u32).to_le_bytes();
    let checksum = checksum(kind.byte(), length, &frame[HEAD_BYTES..]);
    frame[0] = kind.byte();
    frame[1..5].copy_from_slice(&length);
    frame[5..9].copy_from_slice(&checksum.to_le_bytes());
    out.write_all(&frame)?;
    Ok(frame.len() as u64)
}

/// Reads one frame, its bytes in the file added to `at`. Nothing at the end of
/// the file.
pub(super) fn read(
    input: &mut impl Read,
    at: &mut u64,
) -> Result<Option<(Kind, Vec<u8>)>, FrameError> {
    let head = read_up_to(input, HEAD_BYTES)?;
    if head.is_empty() {
        return Ok(None);
    }
    let &[kind, l0, l1, l2, l3, c0, c1, c2, c3] = head.as_slice() else {
        return Err(FrameError::Cut);
    };
    let length = [l0, l1, l2, l3];
    let size = u32::from_le_bytes(length) as usize;
    if size > MAX_FRAME_BYTES {
        return Err(FrameError::Damaged("a frame longer than any"));
    }
    let content = read_up_to(input, size)?;
    if content.len() < size {
        return Err(FrameError::Cut);
    }
    if checksum(kind, length, &content) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err(FrameError::Damaged("a checksum that does not fit"));
    }
    let content = match content.split_first() {
        Some((&STORED, bytes)) => bytes.to_vec(),
        Some((&DEFLATED, bytes)) => {
            miniz_oxide::inflate::decompress_to_vec_with_limit(bytes, MAX_FRAME_BYTES)
                .map_err(|_| FrameError::Damaged("a frame that cannot be unpacked"))?
        }
        _ => return Err(FrameError::Damaged("a frame packed in an unknown way")),
    };
    *at += (HEAD_BYTES + size) as u64;
    Ok(Some((Kind::from_byte(kind), content)))
}

/// Reads `size` bytes, or as many as there are. Memory grows with what is
/// there, not with what a length claims.
fn read_up_to(input: &mut impl Read, size: usize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = Vec::new();
    input
        .by_ref()
        .take(size as u64)
        .read_to_end(&mut bytes)
        .map_err(FrameError::Io)?;
    Ok(bytes)
}
