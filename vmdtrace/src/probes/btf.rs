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
    #[error("this kernel has no struct {0}")]
    NoStruct(String),
}

/// BTF data of a kernel, or of a module.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Of the kernel that a module's data continue: string offsets count from
    /// the start of these.
    base_strings: &'a [u8],
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
            base_strings: &[],
        })
    }

    /// As [`Btf::parse`], for the data of a module. Only the module's own types
    /// are found.
    ///
    /// # Errors
    /// As [`Btf::parse`].
    pub fn parse_module(data: &'a [u8], kernel: &Btf<'a>) -> Result<Self, BtfError> {
        Ok(Self {
            base_strings: kernel.strings,
            ..Self::parse(data)?
        })
    }

    /// Byte offset of a direct member of a struct.
    ///
    /// # Errors
    /// If there is no such member, or the data is malformed.
    pub fn member_offset(&self, structure: &str, member: &str) -> Result<u32, BtfError> {
        self.find_struct(structure, |at, info| {
            for index in 0..(info & 0xffff) as usize {
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
                    return Ok(Some(bits / 8));
                }
            }
            Ok(None)
        })?
        .ok_or_else(|| BtfError::NoMember(structure.to_owned(), member.to_owned()))
    }

    /// Size of a struct in bytes.
    ///
    /// # Errors
    /// If there is no such struct, or the data is malformed.
    pub fn struct_size(&self, structure: &str) -> Result<u32, BtfError> {
        self.find_struct(structure, |at, _| {
            word(self.types, at + 8)
                .map(Some)
                .ok_or(BtfError::Malformed("short type"))
        })?
        .ok_or_else(|| BtfError::NoStruct(structure.to_owned()))
    }

    /// The first answer that `ask` gives for a struct of this name, by its place
    /// and its word of kind, flag and number of members.
    fn find_struct(
        &self,
        structure: &str,
        ask: impl Fn(usize, u32) -> Result<Option<u32>, BtfError>,
    ) -> Result<Option<u32>, BtfError> {
        let mut at = 0;
        while at < self.types.len() {
            let header =
                |index| word(self.types, at + index).ok_or(BtfError::Malformed("short type"));
            let (name, info) = (header(0)?, header(4)?);
            let (count, kind) = ((info & 0xffff) as usize, info >> 24 & 0x1f);
            let extra =
                extra_bytes(kind, count).ok_or(BtfError::Malformed("unknown kind of type"))?;
            if kind == KIND_STRUCT
                && self.is_named(name, structure)
                && let Some(answer) = ask(at, info)?
            {
                return Ok(Some(answer));
            }
            at += 12 + extra;
        }
        Ok(None)
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let offset = offset as usize;
        let text = match offset.checked_sub(self.base_strings.len()) {
            Some(own) => self.strings.get(own..),
            None => self.base_strings.get(offset..),
        };
        text.is_some_and(|text| {
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
    fn a_modules_names_continue_the_kernels() {
        let kernel = sample();
        let kernel = Btf::parse(&kernel).unwrap();
        // `struct ctrl { int b; }`: its own name is its own, "b" is the kernel's.
        let strings = b"ctrl\0";
        let own = 15;
        let mut data = vec![0x9f, 0xeb, 1, 0];
        for value in [24, 0, 24, 24, strings.len() as u32] {
            data.extend(u32::to_ne_bytes(value));
        }
        for value in [own, 4 << 24 | 1, 24, 13, 1, 128] {
            data.extend(u32::to_ne_bytes(value));
        }
        data.extend(strings);
        let module = Btf::parse_module(&data, &kernel).unwrap();
        assert_eq!(module.member_offset("ctrl", "b"), Ok(16));
        assert_eq!(module.struct_size("ctrl"), Ok(24));
        assert!(module.member_offset("outer", "b").is_err());
    }

    #[test]
    fn what_is_missing_is_named() {
        let data = sample();
        let btf = Btf::parse(&data).unwrap();
        assert_eq!(btf.struct_size("outer"), Ok(16));
        assert!(btf.struct_size("int").is_err());
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
