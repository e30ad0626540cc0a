//! Frames: two little-endian 32-bit lengths, a JSON text, a payload.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest JSON text of a frame, in bytes.
const MAX_MESSAGE: u32 = 1 << 20;
/// Largest payload of a frame, in bytes.
pub const MAX_PAYLOAD: u32 = 256 << 20;

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the channel failed: {0}")]
    Io(#[from] io::Error),
    #[error("a frame announces {found} bytes of {what}, more than the {limit} allowed")]
    TooLarge {
        what: &'static str,
        found: usize,
        limit: u32,
    },
    #[error("a frame holds no message that is understood: {0}")]
    Json(#[from] serde_json::Error),
}

/// A message with the bytes that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<M> {
    pub message: M,
    pub payload: Vec<u8>,
}

impl<M> From<M> for Frame<M> {
    fn from(message: M) -> Self {
        Self {
            message,
            payload: Vec::new(),
        }
    }
}

impl<M: Serialize> Frame<M> {
    /// Writes the whole frame.
    ///
    /// # Errors
    /// When it is larger than the other side accepts, or the writer fails.
    pub fn write_to(&self, writer: &mut impl Write) -> Result<(), FrameError> {
        let message = serde_json::to_vec(&self.message)?;
        let mut bytes = Vec::with_capacity(8 + message.len() + self.payload.len());
        bytes.extend(length("message", message.len(), MAX_MESSAGE)?.to_le_bytes());
        bytes.extend(length("payload", self.payload.len(), MAX_PAYLOAD)?.to_le_bytes());
        bytes.extend(&message);
        bytes.extend(&self.payload);
        writer.write_all(&bytes)?;
        Ok(writer.flush()?)
    }
}

impl<M: DeserializeOwned> Frame<M> {
    /// Reads one frame.
    ///
    /// # Errors
    /// When the reader fails or ends, or what comes is no frame. After an error
    /// the position in the stream is unknown: the channel is of no more use.
    pub fn read_from(reader: &mut impl Read) -> Result<Self, FrameError> {
        let message_length = read_length(reader)?;
        let payload_length = read_length(reader)?;
        let message = read_bytes(reader, "message", message_length, MAX_MESSAGE)?;
        let payload = read_bytes(reader, "payload", payload_length, MAX_PAYLOAD)?;
        Ok(Self {
            message: serde_json::from_slice(&message)?,
            payload,
        })
    }
}

fn length(what: &'static str, found: usize, limit: u32) -> Result<u32, FrameError> {
    u32::try_from(found)
        .ok()
        .filter(|length| *length <= limit)
        .ok_or(FrameError::TooLarge { what, found, limit })
}

fn read_length(reader: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    reader.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_bytes(
    reader: &mut impl Read,
    what: &'static str,
    found: u32,
    limit: u32,
) -> Result<Vec<u8>, FrameError> {
    if found > limit {
        return Err(FrameError::TooLarge {
            what,
            found: found as usize,
            limit,
        });
    }
    // Grows as bytes come: a false length alone cannot take the memory.
    let mut bytes = Vec::new();
    reader.take(u64::from(found)).read_to_end(&mut bytes)?;
    if bytes.len() < found as usize {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_as_it_went() {
        let frame = Frame {
            message: "text".to_owned(),
            payload: vec![0, 255, 7],
        };
        let mut wire = Vec::new();
        frame.write_to(&mut wire).unwrap();
        Frame::from("next".to_owned()).write_to(&mut wire).unwrap();
        let mut reader = wire.as_slice();
        assert_eq!(Frame::<String>::read_from(&mut reader).unwrap(), frame);
        assert_eq!(
            Frame::<String>::read_from(&mut reader).unwrap().message,
            "next"
        );
        assert!(reader.is_empty());
    }

    #[test]
    fn a_false_length_is_refused_before_memory_is_taken() {
        let wire = [0xff; 8];
        let error = Frame::<String>::read_from(&mut wire.as_slice()).unwrap_err();
        assert!(
            matches!(
                error,
                FrameError::TooLarge {
                    what: "message",
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_cut_frame_is_an_error() {
        let mut wire = Vec::new();
        Frame {
            message: 1_u32,
            payload: vec![1; 9],
        }
        .write_to(&mut wire)
        .unwrap();
        for end in 0..wire.len() {
            assert!(
                Frame::<u32>::read_from(&mut &wire[..end]).is_err(),
                "cut at {end}"
            );
        }
    }
}
