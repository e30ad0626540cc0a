//! Reads a fuzzer's bytes as a list of messages. The encoding is ours, so that
//! recorded traffic can be written in it: see `Step`.

/// File descriptors are made of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descriptor {
    /// The guest's memory.
    Ram,
    /// The guest's memory, opened for reading only.
    ReadOnlyRam,
    Event,
    /// A socket whose other end nobody reads.
    Socket,
}

/// How a message is cut up on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Split {
    Whole,
    /// The header first, descriptors with the body.
    AfterHeader,
    /// In two parts, descriptors with the second.
    InHeader,
    /// One byte, then the rest.
    AfterFirstByte,
}

/// What the client does. The first byte says what follows:
///
/// - bit 7 set: a patch of the guest's memory, made before the first message:
///   page (1 byte), offset (2), length (1), and that many bytes;
/// - otherwise a message: command (1), flags (1), if bit 4 is set the size to
///   announce (4), length of the body (2), body. Bits 0-1 are the number of
///   descriptors, bits 2-3 their kind, bits 5-6 how it is split.
///
/// Numbers are little-endian. What is cut off at the end is filled with nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    Patch {
        page: u8,
        offset: u16,
        bytes: &'a [u8],
    },
    Message {
        command: u8,
        flags: u8,
        announced: Option<u32>,
        body: &'a [u8],
        fds: usize,
        descriptor: Descriptor,
        split: Split,
    },
}

/// Takes steps off the front of an input.
#[derive(Debug)]
pub(super) struct Steps<'a>(pub(super) &'a [u8]);

impl<'a> Steps<'a> {
    fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(length.min(self.0.len()));
        self.0 = tail;
        head
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes(1).first().copied()
    }

    fn half(&mut self) -> Option<u16> {
        self.bytes(2).first_chunk().copied().map(u16::from_le_bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.bytes(4).first_chunk().copied().map(u32::from_le_bytes)
    }
}

impl<'a> Iterator for Steps<'a> {
    type Item = Step<'a>;

    fn next(&mut self) -> Option<Step<'a>> {
        let control = self.byte()?;
        if control & 0x80 != 0 {
            let (page, offset, length) = (self.byte()?, self.half()?, self.byte()?);
            return Some(Step::Patch {
                page,
                offset,
                bytes: self.bytes(length.into()),
            });
        }
        let (command, flags) = (self.byte()?, self.byte()?);
        let announced = if control & 0x10 != 0 {
            Some(self.word()?)
        } else {
            None
        };
        let length = self.half()?;
        Some(Step::Message {
            command,
            flags,
            announced,
            body: self.bytes(length.into()),
            fds: usize::from(control & 3),
            descriptor: match control >> 2 & 3 {
                0 => Descriptor::Ram,
                1 => Descriptor::ReadOnlyRam,
                2 => Descriptor::Event,
                _ => Descriptor::Socket,
            },
            split: match control >> 5 & 3 {
                0 => Split::Whole,
                1 => Split::AfterHeader,
                2 => Split::InHeader,
                _ => Split::AfterFirstByte,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_in_order_and_cut_off_at_the_end() {
        let bytes = [
            0x81, 3, 0x10, 0, 2, 7, 8, // a patch
            0x16, 2, 0, 40, 0, 0, 0, 1, 0, 9, // a message that lies about its size
            0x60, 13, 0, 5, 0, 1, // one that is cut off
        ];
        let steps: Vec<_> = Steps(&bytes).collect();
        assert_eq!(
            steps,
            [
                Step::Patch {
                    page: 3,
                    offset: 16,
                    bytes: &[7, 8]
                },
                Step::Message {
                    command: 2,
                    flags: 0,
                    announced: Some(40),
                    body: &[9],
                    fds: 2,
                    descriptor: Descriptor::ReadOnlyRam,
                    split: Split::Whole,
                },
                Step::Message {
                    command: 13,
                    flags: 0,
                    announced: None,
                    body: &[1],
                    fds: 0,
                    descriptor: Descriptor::Ram,
                    split: Split::AfterFirstByte,
                },
            ]
        );
        assert_eq!(Steps(&[0x10, 1]).next(), None);
    }
}
