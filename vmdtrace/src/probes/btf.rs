//! Offsets, values and prototypes from the kernel's type information (BTF), format as in
//! Documentation/bpf/btf.rst.
//!
//! Own code because the published readers build every type of the kernel in
//! memory (over 100,000) and some dozens are asked for here. One pass over the
//! data notes where types start and what they are called.

use thiserror::Error;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BtfError {
    #[error("not BTF: {0}")]
    Malformed(&'static str),
    #[error("this kernel has no {0}.{1}")]
    NoMember(String, String),
    #[error("this kernel has no {0} {1}")]
    None(&'static str, String),
}

/// BTF data of a kernel.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type starts; the first has number 1.
    starts: Vec<u32>,
    /// What can be asked for by name, as (hash of the name, where its type starts).
    names: Vec<(u32, u32)>,
    /// What is wrong with the type that the pass ended at, if so.
    broken: Option<BtfError>,
    /// Of the kernel that a module's data continue: string offsets count from
    /// the start of these.
    base_strings: &'a [u8],
}

const MAGIC: u16 = 0xeb9f;
const KIND_INTEGER: u32 = 1;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_FUNCTION: u32 = 12;
const KIND_VARIABLE: u32 = 14;
const KIND_ENUM64: u32 = 19;

/// How deep unnamed members and type qualifiers are followed.
const MAX_NESTING: u32 = 4;

/// One type.
#[derive(Debug)]
struct Type<'a> {
    name: u32,
    info: u32,
    /// Size in bytes, or the number of the type this one is made of.
    size_or_type: u32,
    /// What follows the 12-byte header.
    extra: &'a [u8],
}

impl<'a> Type<'a> {
    fn parse(data: &'a [u8]) -> Result<Self, BtfError> {
        let header = |at| word(data, at).ok_or(BtfError::Malformed("short type"));
        let info = header(4)?;
        let (count, kind) = ((info & 0xffff) as usize, info >> 24 & 0x1f);
        let extra = extra_bytes(kind, count).ok_or(BtfError::Malformed("unknown kind of type"))?;
        Ok(Self {
            name: header(0)?,
            info,
            size_or_type: header(8)?,
            extra: data
                .get(12..12 + extra)
                .ok_or(BtfError::Malformed("short type"))?,
        })
    }

    fn kind(&self) -> u32 {
        self.info >> 24 & 0x1f
    }

    /// Members, enumerators or parameters.
    fn count(&self) -> usize {
        (self.info & 0xffff) as usize
    }

    fn field(&self, at: usize) -> Result<u32, BtfError> {
        word(self.extra, at).ok_or(BtfError::Malformed("short member"))
    }
}

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
        Self::with_base(data, &[])
    }

    /// As [`Btf::parse`], for the data of a module. Only the module's own types
    /// are found.
    ///
    /// # Errors
    /// As [`Btf::parse`].
    pub fn parse_module(data: &'a [u8], kernel: &Btf<'a>) -> Result<Self, BtfError> {
        Self::with_base(data, kernel.strings)
    }

    fn with_base(data: &'a [u8], base_strings: &'a [u8]) -> Result<Self, BtfError> {
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
        let mut btf = Self {
            types: section(field(8)?, field(12)?)
                .ok_or(BtfError::Malformed("type section out of bounds"))?,
            strings: section(field(16)?, field(20)?)
                .ok_or(BtfError::Malformed("string section out of bounds"))?,
            starts: Vec::new(),
            names: Vec::new(),
            broken: None,
            base_strings,
        };
        btf.broken = btf.index().err();
        // Of one hash in the order of the data.
        btf.names.sort_unstable();
        Ok(btf)
    }

    /// The one pass.
    fn index(&mut self) -> Result<(), BtfError> {
        let mut at = 0;
        while at < self.types.len() {
            let found = self.at(at)?;
            self.starts.push(at as u32);
            let stride = match found.kind() {
                KIND_STRUCT | KIND_FUNCTION | KIND_VARIABLE => {
                    self.names.push((hash(self.text(found.name)), at as u32));
                    0
                }
                KIND_ENUM => 8,
                KIND_ENUM64 => 12,
                _ => 0,
            };
            if stride > 0 {
                for enumerator in 0..found.count() {
                    let name = found.field(stride * enumerator)?;
                    self.names.push((hash(self.text(name)), at as u32));
                }
            }
            at += 12 + found.extra.len();
        }
        Ok(())
    }

    /// The type that starts there.
    fn at(&self, start: usize) -> Result<Type<'a>, BtfError> {
        Type::parse(self.types.get(start..).unwrap_or_default())
    }

    /// Size of a struct in bytes.
    ///
    /// # Errors
    /// If there is no such struct, or the data is malformed.
    pub fn struct_size(&self, structure: &str) -> Result<u32, BtfError> {
        self.named(KIND_STRUCT, structure)?
            .map(|found| found.size_or_type)
            .ok_or_else(|| BtfError::None("struct", structure.to_owned()))
    }

    /// Byte offset of a member of a struct, directly or in an unnamed part of it.
    ///
    /// # Errors
    /// If there is no such member, or the data is malformed.
    pub fn member_offset(&self, structure: &str, member: &str) -> Result<u32, BtfError> {
        // A module's types are numbered after the kernel's, which are not here.
        let nesting = if self.base_strings.is_empty() {
            MAX_NESTING
        } else {
            0
        };
        for found in self.called(structure) {
            let found = found?;
            if found.kind() == KIND_STRUCT
                && self.is_named(found.name, structure)
                && let Some(offset) = self.find_member(&found, member, nesting)?
            {
                return Ok(offset);
            }
        }
        self.not_broken()?;
        Err(BtfError::NoMember(structure.to_owned(), member.to_owned()))
    }

    fn find_member(
        &self,
        structure: &Type<'a>,
        member: &str,
        nesting: u32,
    ) -> Result<Option<u32>, BtfError> {
        for index in 0..structure.count() {
            let field = |part| structure.field(12 * index + part);
            let (name, id) = (field(0)?, field(4)?);
            // With the kind flag the upper byte is a bit-field's size.
            let bits = if structure.info >> 31 == 1 {
                field(8)? & 0x00ff_ffff
            } else {
                field(8)?
            };
            if name != 0 {
                if self.is_named(name, member) {
                    return Ok(Some(bits / 8));
                }
            } else if nesting > 0
                && let Some(inner) = self.by_id(id)?
                && matches!(inner.kind(), KIND_STRUCT | KIND_UNION)
                && let Some(offset) = self.find_member(&inner, member, nesting - 1)?
            {
                return Ok(Some(bits / 8 + offset));
            }
        }
        Ok(None)
    }

    /// The value of an enumerator, of whatever enumeration.
    ///
    /// # Errors
    /// If there is none of this name, or the data is malformed.
    pub fn enumerator(&self, name: &str) -> Result<u32, BtfError> {
        for found in self.called(name) {
            let found = found?;
            let stride = match found.kind() {
                KIND_ENUM => 8,
                KIND_ENUM64 => 12,
                _ => continue,
            };
            for index in 0..found.count() {
                if self.is_named(found.field(stride * index)?, name) {
                    return found.field(stride * index + 4);
                }
            }
        }
        self.not_broken()?;
        Err(BtfError::None("enumerator", name.to_owned()))
    }

    /// How many parameters a function takes.
    ///
    /// # Errors
    /// If there is none of this name, or the data is malformed.
    pub fn parameters(&self, function: &str) -> Result<usize, BtfError> {
        let none = || BtfError::None("function", function.to_owned());
        let id = self.named(KIND_FUNCTION, function)?.ok_or_else(none)?;
        let prototype = self.by_id(id.size_or_type)?.ok_or_else(none)?;
        Ok(prototype.count())
    }

    /// Size in bytes of a variable that is a number.
    ///
    /// # Errors
    /// If there is none of this name, or the data is malformed.
    pub fn variable_bytes(&self, variable: &str) -> Result<u32, BtfError> {
        let none = || BtfError::None("variable", variable.to_owned());
        let mut found = self.named(KIND_VARIABLE, variable)?.ok_or_else(none)?;
        for _ in 0..MAX_NESTING {
            found = self.by_id(found.size_or_type)?.ok_or_else(none)?;
            if found.kind() == KIND_INTEGER {
                return Ok(found.size_or_type);
            }
        }
        Err(none())
    }

    /// The first type of a kind and name.
    fn named(&self, kind: u32, name: &str) -> Result<Option<Type<'a>>, BtfError> {
        for found in self.called(name) {
            let found = found?;
            if found.kind() == kind && self.is_named(found.name, name) {
                return Ok(Some(found));
            }
        }
        self.not_broken()?;
        Ok(None)
    }

    /// The types that may be called so, or may have such an enumerator, in order.
    fn called(&self, name: &str) -> impl Iterator<Item = Result<Type<'a>, BtfError>> {
        let wanted = hash(name.as_bytes());
        let first = self.names.partition_point(|(hash, _)| *hash < wanted);
        let rest = self.names.get(first..).unwrap_or_default();
        rest.iter()
            .take_while(move |(hash, _)| *hash == wanted)
            .map(|(_, start)| self.at(*start as usize))
    }

    /// The type of this number; the first has number 1.
    fn by_id(&self, id: u32) -> Result<Option<Type<'a>>, BtfError> {
        let index = (id as usize).checked_sub(1);
        match index.and_then(|index| self.starts.get(index)) {
            Some(start) => self.at(*start as usize).map(Some),
            None => Ok(None),
        }
    }

    /// What is not found in data that cannot be read to the end may be there.
    fn not_broken(&self) -> Result<(), BtfError> {
        match &self.broken {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        self.text(offset) == name.as_bytes()
    }

    /// The string at an offset; empty beyond the end.
    fn text(&self, offset: u32) -> &'a [u8] {
        let offset = offset as usize;
        let text = match offset.checked_sub(self.base_strings.len()) {
            Some(own) => self.strings.get(own..),
            None => self.base_strings.get(offset..),
        };
        let text = text.unwrap_or_default();
        let end = text.iter().position(|byte| *byte == 0);
        text.get(..end.unwrap_or(0)).unwrap_or_default()
    }
}

/// FNV-1a: short names, and nobody who would make them collide.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
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
        assert_eq!(
            btf.member_offset("outer", "c").unwrap_err().to_string(),
            "this kernel has no outer.c"
        );
        assert!(btf.member_offset("oute", "a").is_err());
    }

    /// `enum { RED = 7 }`, `int f(int a, int b)`, `unsigned long v` (8 bytes) and
    /// `struct hot { union { struct { int a; int count; }; }; }`.
    fn others() -> Vec<u8> {
        let strings = b"\0RED\0f\0a\0b\0v\0hot\0count\0long\0";
        let types = [
            0u32,
            6 << 24 | 1,
            4,
            1,
            7, // 1: the enumeration
            23,
            1 << 24,
            8,
            64, // 2: long
            0,
            13 << 24 | 2,
            2,
            7,
            2,
            9,
            2, // 3: the prototype
            5,
            12 << 24,
            3, // 4: f
            11,
            14 << 24,
            6,
            1, // 5: v, of
            0,
            10 << 24,
            2, // 6: const long
            0,
            4 << 24 | 2,
            16,
            7,
            2,
            0,
            17,
            2,
            64, // 7: the inner struct
            0,
            5 << 24 | 1,
            16,
            0,
            7,
            0, // 8: the union
            11 + 2,
            4 << 24 | 1,
            16,
            0,
            8,
            128, // 9: hot, with the union at byte 16
            0,
            19 << 24 | 1,
            8,
            9,
            5,
            0, // 10: a 64-bit enumeration, b = 5
            0,
            9 << 24,
            2,
            0,
            9 << 24,
            2, // two typedefs
        ];
        let mut data = vec![0x9f, 0xeb, 1, 0];
        let bytes = size_of_val(&types) as u32;
        for value in [24, 0, bytes, bytes, strings.len() as u32] {
            data.extend(value.to_ne_bytes());
        }
        data.extend(types.iter().flat_map(|value| value.to_ne_bytes()));
        data.extend(strings);
        data
    }

    #[test]
    fn values_prototypes_sizes_and_unnamed_parts_are_found() {
        let data = others();
        let btf = Btf::parse(&data).unwrap();
        assert_eq!(btf.enumerator("RED"), Ok(7));
        assert_eq!(btf.enumerator("b"), Ok(5));
        assert_eq!(btf.parameters("f"), Ok(2));
        assert_eq!(btf.variable_bytes("v"), Ok(8));
        assert_eq!(btf.member_offset("hot", "count"), Ok(24));
        assert_eq!(btf.member_offset("hot", "a"), Ok(16));
        for missing in [
            btf.enumerator("BLUE").unwrap_err(),
            btf.parameters("v").unwrap_err(),
            btf.variable_bytes("f").unwrap_err(),
        ] {
            assert!(missing.to_string().starts_with("this kernel has no "));
        }
    }

    #[test]
    fn what_is_not_found_in_broken_data_is_not_said_to_be_missing() {
        let mut data = others();
        // The first of the two typedefs at the end, of a kind there is not.
        let header = data.len() - 2 * 12 - b"\0RED\0f\0a\0b\0v\0hot\0count\0long\0".len();
        data[header + 7] = 31;
        let btf = Btf::parse(&data).unwrap();
        assert_eq!(btf.enumerator("RED"), Ok(7));
        assert_eq!(
            btf.enumerator("BLUE"),
            Err(BtfError::Malformed("unknown kind of type"))
        );
    }

    proptest! {
        #[test]
        fn broken_types_never_loop_or_panic(at in 0usize..280, byte: u8) {
            let mut data = others();
            let length = data.len();
            data[at % length] = byte;
            if let Ok(btf) = Btf::parse(&data) {
                let _ = btf.enumerator("nothing");
                let _ = btf.parameters("f");
                let _ = btf.variable_bytes("v");
                let _ = btf.member_offset("hot", "nothing");
            }
        }

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
