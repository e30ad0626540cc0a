//! Little-endian fields in byte slices, without panics.

/// The field at `offset`, or `None` if the slice is too short.
pub(crate) fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    field(bytes, offset).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    field(bytes, offset).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    field(bytes, offset).map(u64::from_le_bytes)
}

/// Copies `value` to `offset` of a structure that this crate lays out itself.
/// What lies beyond the end is dropped.
pub(crate) fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    debug_assert!(
        offset + value.len() <= bytes.len(),
        "field outside its structure"
    );
    for (target, source) in bytes.iter_mut().skip(offset).zip(value) {
        *target = *source;
    }
}

/// Fills `out` with the bytes of `image` from `offset` on; zeroes beyond its end.
pub(crate) fn read_image(image: &[u8], offset: usize, out: &mut [u8]) {
    out.fill(0);
    let tail = image.get(offset..).unwrap_or_default();
    for (target, source) in out.iter_mut().zip(tail) {
        *target = *source;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_beyond_the_end_are_none() {
        let bytes = [1, 2, 3, 4];
        assert_eq!(u32_at(&bytes, 0), Some(0x0403_0201));
        assert_eq!(u16_at(&bytes, 2), Some(0x0403));
        assert_eq!(u16_at(&bytes, 3), None);
        assert_eq!(u64_at(&bytes, 0), None);
        assert_eq!(u32_at(&bytes, usize::MAX), None);
    }

    #[test]
    fn reading_past_an_image_gives_zeroes() {
        let mut out = [0xff; 4];
        read_image(&[1, 2, 3], 2, &mut out);
        assert_eq!(out, [3, 0, 0, 0]);
        read_image(&[1, 2, 3], 9, &mut out);
        assert_eq!(out, [0; 4]);
    }
}
