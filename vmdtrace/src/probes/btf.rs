//! Member offsets from the kernel's type information (BTF), format as in
//! Documentation/bpf/btf.rst.
//!
//! Own code because the published readers build every type of the kernel in
//! memory (over 100,000) and at most a handful is asked for here.

use thiserror::Error;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum BtfError {
    #[error("not BTF: {0}")]
    Malformed(&'static str),
    #[error("this kernel has no {0}.{1}")]
    NoMember(String, String),
}

/// BTF data of a kernel.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;

/// Bytes that follow the 12-byte header of a type of this kind.
fn extra_bytes(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // Pointer, forward, typedef, volatile, const, restrict, function, float, type tag.
        2 | 7..=12 | 16 | 18 => 0,
        // Integer, variable, declaration tag.
        1 | 14 | 17 => 4,
        // Array.
        3 => 12,
        // Struct, union, data section, 64-bit enumeration.
        4 | 5 | 15 | 19 => 12 * count,
        // Enumeration, function prototype.
        6 | 13 => 8 * count,
        _ => return None,
    })
}

impl<'a> Btf<'a> {
    /// Checks the header and finds the two sections.
    ///
    /// # Errors
    /// If the data is no BTF of this machine's byte order.
    pub fn parse(data: &'a [u8]) -> Result<Self, BtfError> {
        if data.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err(BtfError::Malformed("no BTF magic"));
        }
        let field = |at| {
            word(data, at)
                .map(|value| value as usize)
                .ok_or(BtfError::Malformed("short header"))
        };
        let header = field(4)?;
        let section = |offset: usize, length: usize| {
            let start = header.checked_add(offset)?;
            data.get(start..start.checked_add(length)?)
        };
        Ok(Self {
            types: section(field(8)?, field(12)?)
                .ok_or(BtfError::Malformed("type section out of bounds"))?,
            strings: section(field(16)?, field(20)?)
                .ok_or(BtfError::Malformed("string section out of bounds"))?,
        })
    }

    /// Byte offset of a direct member of a struct.
    ///
    /// # Errors
    /// If there is no such member, or the data is malformed.
    pub fn member_offset(&self, structure: &str, member: &str) -> Result<u32, BtfError> {
        let mut at = 0;
        while at < self.types.len() {
            let header =
                |index| word(self.types, at + index).ok_or(BtfError::Malformed("short type"));
            let (name, info) = (header(0)?, header(4)?);
            let (count, kind) = ((info & 0xffff) as usize, info >> 24 & 0x1f);
            let extra =
                extra_bytes(kind, count).ok_or(BtfError::Malformed("unknown kind of type"))?;
            if kind == KIND_STRUCT && self.is_named(name, structure) {
                for index in 0..count {
                    let field = |part| {
                        word(self.types, at + 12 + 12 * index + part)
                            .ok_or(BtfError::Malformed("short member"))
                    };
                    if self.is_named(field(0)?, member) {
                        // With the kind flag the upper byte is a bit-field's size.
                        let bits = if info >> 31 == 1 {
                            field(8)? & 0x00ff_ffff
                        } else {
                            field(8)?
                        };
                        return Ok(bits / 8);
                    }
                }
            }
            at += 12 + extra;
        }
        Err(BtfError::NoMember(structure.to_owned(), member.to_owned()))
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        self.strings.get(offset as usize..).is_some_and(|text| {
            text.strip_prefix(name.as_bytes())
                .is_some_and(|rest| rest.first() == Some(&0))
        })
    }
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An integer, then `struct outer { int a; int b:3 at bit 64; }`.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0outer\0a\0b\0";
        let types: [u32; 13] = [
            1,
            1 << 24,
            4,
            32, // int
            5,
            4 << 24 | 1 << 31 | 2,
            16, // struct outer, two members, with the kind flag
            11,
            1,
            0, // a
            13,
            1,
            3 << 24 | 64, // b
        ];
        let mut data = vec![0x9f, 0xeb, 1, 0];
        for value in [24, 0, 52, 52, strings.len() as u32] {
            data.extend(value.to_ne_bytes());
        }
        data.extend(types.iter().flat_map(|value| value.to_ne_bytes()));
        data.extend(strings);
        data
    }

    #[test]
    fn members_are_found_bit_fields_included() {
        let data = sample();
        let btf = Btf::parse(&data).unwrap();
        assert_eq!(btf.member_offset("outer", "a"), Ok(0));
        assert_eq!(btf.member_offset("outer", "b"), Ok(8));
    }

    #[test]
    fn what_is_missing_is_named() {
        let data = sample();
        let btf = Btf::parse(&data).unwrap();
        assert_eq!(
            btf.member_offset("outer", "c").unwrap_err().to_string(),
            "this kernel has no outer.c"
        );
        assert!(btf.member_offset("oute", "a").is_err());
    }

    proptest! {
        #[test]
        fn broken_data_is_refused_not_trusted(at in 0usize..90, byte: u8, cut in 0usize..92) {
            let mut data = sample();
            let length = data.len();
            data[at % length] = byte;
            data.truncate(cut.min(length));
            if let Ok(btf) = Btf::parse(&data) {
                let _ = btf.member_offset("outer", "b");
            }
        }
    }
}
