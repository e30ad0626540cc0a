//! vfio-user messages: parsing and encoding, nothing else.
//!
//! Layouts and numbers follow the vfio-user protocol specification of QEMU
//! (docs/interop/vfio-user.rst). All fields are little-endian here.

use rustix::io::Errno;

use crate::bytes::{put, u16_at, u32_at, u64_at};

/// Bytes of a message header.
pub(crate) const HEADER_LEN: usize = 16;
/// Most bytes that one region access may carry.
pub(crate) const MAX_DATA: usize = 64 << 10;
/// Longest message that is accepted.
pub(crate) const MAX_MESSAGE: usize = MAX_DATA + 64;
/// Most file descriptors that may come with one message.
pub(crate) const MAX_FDS: usize = 16;
/// Most accesses in one multiple write.
pub(crate) const MAX_WRITES: u64 = 1024;

/// Bytes of one access in a multiple write, and of the data in it.
const MULTI_ENTRY_LEN: usize = 24;
const MULTI_DATA_LEN: usize = 8;

const FLAG_TYPE: u32 = 0xf;
const FLAG_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 0x10;
const FLAG_ERROR: u32 = 0x20;

/// Command numbers.
pub(crate) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DMA_WRITE: u16 = 12;
    pub(crate) const DEVICE_RESET: u16 = 13;
    pub(crate) const REGION_WRITE_MULTI: u16 = 15;
}

/// A message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: u16,
    pub(crate) command: u16,
    /// Bytes of the whole message.
    pub(crate) size: u32,
    flags: u32,
    error: u32,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8; HEADER_LEN]) -> Self {
        let word = |offset| u32_at(bytes, offset).unwrap_or_default();
        Self {
            id: u16_at(bytes, 0).unwrap_or_default(),
            command: u16_at(bytes, 2).unwrap_or_default(),
            size: word(4),
            flags: word(8),
            error: word(12),
        }
    }

    /// Bytes that follow the header, if the size is acceptable.
    pub(crate) fn body_len(&self) -> Option<usize> {
        let size = usize::try_from(self.size).ok()?;
        if size > MAX_MESSAGE {
            None
        } else {
            size.checked_sub(HEADER_LEN)
        }
    }

    pub(crate) fn is_reply(&self) -> bool {
        self.flags & FLAG_TYPE == FLAG_REPLY
    }

    pub(crate) fn wants_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY == 0
    }

    /// The error a reply carries.
    pub(crate) fn error(&self) -> Option<u32> {
        (self.flags & FLAG_ERROR != 0).then_some(self.error)
    }
}

/// Why a request cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("unknown command {0}")]
    UnknownCommand(u16),
    #[error("command {command} is {got} bytes long, which is too short")]
    Truncated { command: u16, got: usize },
    #[error("command {command} carries a count of {count}, which is too large")]
    TooLarge { command: u16, count: u64 },
    #[error("version {major}.{minor} is not supported")]
    Version { major: u16, minor: u16 },
}

impl ProtocolError {
    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::UnknownCommand(_) => Errno::NOSYS,
            Self::Truncated { .. } => Errno::INVAL,
            Self::TooLarge { .. } => Errno::TOOBIG,
            Self::Version { .. } => Errno::NOTSUP,
        }
    }
}

/// One write to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionWrite<'a> {
    pub(crate) region: u32,
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
}

/// A request of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Version {
        minor: u16,
    },
    DmaMap {
        writable: bool,
        offset: u64,
        address: u64,
        size: u64,
    },
    DmaUnmap {
        all: bool,
        address: u64,
        size: u64,
    },
    GetInfo,
    RegionInfo {
        index: u32,
    },
    IrqInfo {
        index: u32,
    },
    SetIrqs {
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
    },
    RegionRead {
        region: u32,
        offset: u64,
        count: usize,
    },
    RegionWrite(RegionWrite<'a>),
    WriteMulti(Vec<RegionWrite<'a>>),
    Reset,
}

/// Reads the request `code` from the bytes after the header.
pub(crate) fn parse(code: u16, body: &[u8]) -> Result<Request<'_>, ProtocolError> {
    let truncated = ProtocolError::Truncated {
        command: code,
        got: HEADER_LEN + body.len(),
    };
    let half = |offset| u16_at(body, offset).ok_or(truncated);
    let word = |offset| u32_at(body, offset).ok_or(truncated);
    let long = |offset| u64_at(body, offset).ok_or(truncated);
    Ok(match code {
        command::VERSION => match (half(0)?, half(2)?) {
            (0, minor) => Request::Version { minor },
            (major, minor) => return Err(ProtocolError::Version { major, minor }),
        },
        command::DMA_MAP => Request::DmaMap {
            writable: word(4)? & 2 != 0,
            offset: long(8)?,
            address: long(16)?,
            size: long(24)?,
        },
        command::DMA_UNMAP => Request::DmaUnmap {
            all: word(4)? & 2 != 0,
            address: long(8)?,
            size: long(16)?,
        },
        command::DEVICE_GET_INFO => Request::GetInfo,
        command::DEVICE_GET_REGION_INFO => Request::RegionInfo { index: word(8)? },
        command::DEVICE_GET_IRQ_INFO => Request::IrqInfo { index: word(8)? },
        command::DEVICE_SET_IRQS => Request::SetIrqs {
            flags: word(4)?,
            index: word(8)?,
            start: word(12)?,
            count: word(16)?,
        },
        command::REGION_READ => Request::RegionRead {
            offset: long(0)?,
            region: word(8)?,
            count: count(code, word(12)?)?,
        },
        command::REGION_WRITE => {
            let count = count(code, word(12)?)?;
            let data = body
                .get(16..)
                .and_then(|data| data.get(..count))
                .ok_or(truncated)?;
            Request::RegionWrite(RegionWrite {
                offset: long(0)?,
                region: word(8)?,
                data,
            })
        }
        command::REGION_WRITE_MULTI => Request::WriteMulti(parse_writes(code, body)?),
        command::DEVICE_RESET => Request::Reset,
        other => return Err(ProtocolError::UnknownCommand(other)),
    })
}

fn count(command: u16, count: u32) -> Result<usize, ProtocolError> {
    let bytes = count as usize;
    if bytes > MAX_DATA {
        return Err(ProtocolError::TooLarge {
            command,
            count: count.into(),
        });
    }
    Ok(bytes)
}

fn parse_writes(command: u16, body: &[u8]) -> Result<Vec<RegionWrite<'_>>, ProtocolError> {
    let truncated = ProtocolError::Truncated {
        command,
        got: HEADER_LEN + body.len(),
    };
    let writes = u64_at(body, 0).ok_or(truncated)?;
    if writes > MAX_WRITES {
        return Err(ProtocolError::TooLarge {
            command,
            count: writes,
        });
    }
    let entries = body
        .get(8..)
        .unwrap_or_default()
        .chunks_exact(MULTI_ENTRY_LEN);
    if (entries.len() as u64) < writes {
        return Err(truncated);
    }
    entries
        .take(writes as usize)
        .map(|entry| {
            let count = u32_at(entry, 12).ok_or(truncated)?;
            let data = entry
                .get(16..16 + (count as usize).min(MULTI_DATA_LEN + 1))
                .ok_or(ProtocolError::TooLarge {
                    command,
                    count: count.into(),
                })?;
            Ok(RegionWrite {
                offset: u64_at(entry, 0).ok_or(truncated)?,
                region: u32_at(entry, 8).ok_or(truncated)?,
                data,
            })
        })
        .collect()
}

/// The reply to `request`.
pub(crate) fn reply(request: &Header, body: &[u8]) -> Vec<u8> {
    let mut message = header(request.id, request.command, body.len(), FLAG_REPLY, 0);
    message.extend_from_slice(body);
    message
}

/// The reply to a `request` that failed.
pub(crate) fn error_reply(request: &Header, errno: Errno) -> Vec<u8> {
    let error = errno.raw_os_error().unsigned_abs();
    header(
        request.id,
        request.command,
        0,
        FLAG_REPLY | FLAG_ERROR,
        error,
    )
}

/// A write to the guest's address space to which no reply is wanted.
pub(crate) fn dma_write(id: u16, address: u64, data: &[u8]) -> Vec<u8> {
    let mut message = header(id, command::DMA_WRITE, 16 + data.len(), FLAG_NO_REPLY, 0);
    message.extend_from_slice(&address.to_le_bytes());
    message.extend_from_slice(&(data.len() as u64).to_le_bytes());
    message.extend_from_slice(data);
    message
}

fn header(id: u16, command: u16, body_len: usize, flags: u32, error: u32) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_LEN + body_len);
    message.extend_from_slice(&id.to_le_bytes());
    message.extend_from_slice(&command.to_le_bytes());
    message.extend_from_slice(&((HEADER_LEN + body_len) as u32).to_le_bytes());
    message.extend_from_slice(&flags.to_le_bytes());
    message.extend_from_slice(&error.to_le_bytes());
    message
}

/// Body of the reply to a version message.
pub(crate) fn version_body() -> Vec<u8> {
    let mut body = vec![0; 4];
    let capabilities = serde_json::json!({ "capabilities": {
        "max_msg_fds": MAX_FDS,
        "max_data_xfer_size": MAX_DATA,
        "pgsizes": 4096,
        "max_dma_maps": crate::memory::MAX_REGIONS,
        "write_multiple": true,
    }});
    body.extend_from_slice(capabilities.to_string().as_bytes());
    body.push(0);
    body
}

/// Body of the reply to a device info request: a PCI device that can be reset.
pub(crate) fn device_info_body(regions: u32, irqs: u32) -> Vec<u8> {
    words(&[16, 3, regions, irqs])
}

/// Body of the reply to a region info request: `size` 0 is a region that the
/// device does not have.
pub(crate) fn region_info_body(index: u32, size: u64) -> Vec<u8> {
    let mut body = words(&[32, if size > 0 { 3 } else { 0 }, index, 0]);
    body.resize(32, 0);
    put(&mut body, 16, &size.to_le_bytes());
    body
}

/// Body of the reply to an interrupt info request.
pub(crate) fn irq_info_body(index: u32, count: u32) -> Vec<u8> {
    words(&[16, u32::from(count > 0), index, count])
}

fn words(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed_header(message: &[u8]) -> Header {
        Header::parse(message.first_chunk().unwrap())
    }

    #[test]
    fn replies_repeat_id_and_command_and_carry_their_size() {
        let request = Header {
            id: 7,
            command: 9,
            size: 32,
            flags: 0,
            error: 0,
        };
        let message = reply(&request, &[1, 2, 3]);
        let header = parsed_header(&message);
        assert_eq!((header.id, header.command, header.size), (7, 9, 19));
        assert!(header.is_reply() && header.error().is_none());
        let failed = error_reply(&request, Errno::INVAL);
        assert_eq!(parsed_header(&failed).error(), Some(22));
        assert_eq!(failed.len(), HEADER_LEN);
    }

    #[test]
    fn dma_write_puts_its_data_at_offset_32() {
        let message = dma_write(3, 0xfee0_1000, &0x4021_u32.to_le_bytes());
        assert_eq!(message.len(), 36);
        assert_eq!(u64_at(&message, 16), Some(0xfee0_1000));
        assert_eq!(u64_at(&message, 24), Some(4));
        assert_eq!(u32_at(&message, 32), Some(0x4021));
        assert!(!parsed_header(&message).wants_reply());
    }

    #[test]
    fn sizes_outside_the_bounds_have_no_body() {
        let header = |size| Header {
            id: 0,
            command: 1,
            size,
            flags: 0,
            error: 0,
        };
        assert_eq!(header(15).body_len(), None);
        assert_eq!(header(16).body_len(), Some(0));
        assert_eq!(header(MAX_MESSAGE as u32 + 1).body_len(), None);
        assert_eq!(header(u32::MAX).body_len(), None);
    }

    #[test]
    fn a_write_longer_than_its_message_is_truncated() {
        let mut body = vec![0; 16];
        put(&mut body, 12, &8_u32.to_le_bytes());
        body.extend_from_slice(&[1, 2, 3]);
        let error = parse(command::REGION_WRITE, &body).unwrap_err();
        assert_eq!(error.errno(), Errno::INVAL);
    }

    #[test]
    fn a_multiple_write_is_split_into_its_accesses() {
        let mut body = 2_u64.to_le_bytes().to_vec();
        for (offset, count) in [(0x1000_u64, 4_u32), (0x1008, 8)] {
            body.extend_from_slice(&offset.to_le_bytes());
            body.extend_from_slice(&2_u32.to_le_bytes());
            body.extend_from_slice(&count.to_le_bytes());
            body.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        }
        let Request::WriteMulti(writes) = parse(command::REGION_WRITE_MULTI, &body).unwrap() else {
            panic!("not a multiple write");
        };
        assert_eq!(
            writes[0],
            RegionWrite {
                region: 2,
                offset: 0x1000,
                data: &[1, 2, 3, 4]
            }
        );
        assert_eq!(writes[1].data.len(), 8);
        put(&mut body, 8 + 12, &9_u32.to_le_bytes());
        let error = parse(command::REGION_WRITE_MULTI, &body).unwrap_err();
        assert_eq!(
            error,
            ProtocolError::TooLarge {
                command: 15,
                count: 9
            }
        );
    }

    proptest! {
        #[test]
        fn any_body_parses_or_fails_cleanly(
            code in 0_u16..20,
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            match parse(code, &body) {
                Ok(Request::RegionRead { count, .. }) => prop_assert!(count <= MAX_DATA),
                Ok(Request::RegionWrite(write)) => prop_assert!(write.data.len() <= body.len()),
                Ok(Request::WriteMulti(writes)) => {
                    prop_assert!(writes.iter().all(|write| write.data.len() <= MULTI_DATA_LEN));
                }
                Ok(_) => {}
                Err(error) => prop_assert!(error.errno().raw_os_error() > 0),
            }
        }
    }
}
