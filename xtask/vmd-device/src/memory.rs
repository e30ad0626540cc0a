//! The guest's RAM, as the client shares it. Every access is checked against
//! the mapped regions; nothing outside them can be touched. The guest writes to
//! this memory at the same time: values are copied out once and then judged.

use std::fs::File;
use std::sync::atomic::Ordering;

use vm_memory::bitmap::BitmapSlice;
use vm_memory::mmap::{MmapRegionBuilder, MmapRegionError};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Memory pages of the guest.
pub(crate) const PAGE: u64 = 4096;

/// More regions than any client needs; each costs a mapping.
pub(crate) const MAX_REGIONS: usize = 1024;

/// An address range that no (writable) region covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("guest memory at {address:#x} is not mapped for this access")]
pub(crate) struct Unmapped {
    pub(crate) address: u64,
}

/// Why a region cannot be mapped or unmapped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MapError {
    #[error("region {address:#x}+{size:#x} is empty, not page-aligned or wraps around")]
    Range { address: u64, size: u64 },
    #[error("region {address:#x}+{size:#x} overlaps one that is mapped")]
    Overlap { address: u64, size: u64 },
    #[error("more than {MAX_REGIONS} memory regions")]
    TooMany,
    #[error("the client's file of {length} bytes has no {size:#x} bytes at {offset:#x}")]
    File { length: u64, offset: u64, size: u64 },
    #[error("cannot read the size of the client's file: {0}")]
    Metadata(#[from] std::io::Error),
    #[error("cannot map the client's file: {0}")]
    Mapping(#[from] MmapRegionError),
    #[error("range {address:#x}+{size:#x} covers only part of a mapped region")]
    Partial { address: u64, size: u64 },
}

#[derive(Debug)]
struct Region {
    start: u64,
    /// Exclusive.
    end: u64,
    writable: bool,
    mapping: MmapRegion,
}

/// All regions that the client has mapped.
#[derive(Debug, Default)]
pub(crate) struct GuestMemory {
    regions: Vec<Region>,
}

impl GuestMemory {
    /// Maps `size` bytes of `file` from `offset` at the guest address `address`.
    /// The client must not shrink the file while it is mapped.
    pub(crate) fn map(
        &mut self,
        file: File,
        offset: u64,
        address: u64,
        size: u64,
        writable: bool,
    ) -> Result<(), MapError> {
        let range = MapError::Range { address, size };
        let aligned = [offset, address, size]
            .iter()
            .all(|value| value.is_multiple_of(PAGE));
        let (Some(end), Ok(length), true) = (
            address.checked_add(size),
            usize::try_from(size),
            aligned && size > 0,
        ) else {
            return Err(range);
        };
        if self
            .regions
            .iter()
            .any(|region| address < region.end && region.start < end)
        {
            return Err(MapError::Overlap { address, size });
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(MapError::TooMany);
        }
        // An access beyond the end of the file would kill this process.
        let length_of_file = file.metadata()?.len();
        if offset
            .checked_add(size)
            .is_none_or(|end| end > length_of_file)
        {
            return Err(MapError::File {
                length: length_of_file,
                offset,
                size,
            });
        }
        let protection = if writable {
            PROT_READ | PROT_WRITE
        } else {
            PROT_READ
        };
        let mapping = MmapRegionBuilder::new(length)
            .with_mmap_prot(protection)
            .with_mmap_flags(MAP_SHARED | MAP_NORESERVE)
            .with_file_offset(FileOffset::new(file, offset))
            .build()?;
        self.regions.push(Region {
            start: address,
            end,
            writable,
            mapping,
        });
        Ok(())
    }

    /// Unmaps all regions inside the range.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> Result<(), MapError> {
        let Some(end) = address.checked_add(size) else {
            return Err(MapError::Range { address, size });
        };
        let inside = |region: &Region| address <= region.start && region.end <= end;
        let overlaps = |region: &Region| address < region.end && region.start < end;
        if self
            .regions
            .iter()
            .any(|region| overlaps(region) && !inside(region))
        {
            return Err(MapError::Partial { address, size });
        }
        self.regions.retain(|region| !inside(region));
        Ok(())
    }

    pub(crate) fn unmap_all(&mut self) {
        self.regions.clear();
    }

    /// Copies guest memory to `out`.
    pub(crate) fn read(&self, address: u64, out: &mut [u8]) -> Result<(), Unmapped> {
        let mut address = address;
        let mut rest = out;
        while !rest.is_empty() {
            let slice = self.slice(address, rest.len(), false)?;
            let (part, tail) = rest.split_at_mut(slice.len().min(rest.len()));
            slice.copy_to(part);
            address = address.saturating_add(part.len() as u64);
            rest = tail;
        }
        Ok(())
    }

    /// Copies `data` to guest memory. If only a part is mapped, that part may
    /// have been written.
    pub(crate) fn write(&self, address: u64, data: &[u8]) -> Result<(), Unmapped> {
        let mut address = address;
        let mut rest = data;
        while !rest.is_empty() {
            let slice = self.slice(address, rest.len(), true)?;
            let (part, tail) = rest.split_at(slice.len().min(rest.len()));
            slice.copy_from(part);
            address = address.saturating_add(part.len() as u64);
            rest = tail;
        }
        Ok(())
    }

    /// Writes an aligned word in one piece, after everything written before it.
    pub(crate) fn publish_u32(&self, address: u64, value: u32) -> Result<(), Unmapped> {
        self.slice(address, 4, true)?
            .store(value.to_le(), 0, Ordering::Release)
            .map_err(|_| Unmapped { address })
    }

    /// The mapped memory at `address`, `length` bytes or up to the region's end.
    fn slice(
        &self,
        address: u64,
        length: usize,
        write: bool,
    ) -> Result<VolatileSlice<'_, impl BitmapSlice>, Unmapped> {
        let unmapped = Unmapped { address };
        let region = self
            .regions
            .iter()
            .find(|region| region.start <= address && address < region.end)
            .filter(|region| region.writable || !write)
            .ok_or(unmapped)?;
        let offset = usize::try_from(address - region.start).map_err(|_| unmapped)?;
        let available = usize::try_from(region.end - address).map_err(|_| unmapped)?;
        region
            .mapping
            .get_slice(offset, length.min(available))
            .map_err(|_| unmapped)
    }
}

// The values of mmap(2) on Linux/x86-64, which vm-memory takes as plain numbers.
const PROT_READ: i32 = 1;
const PROT_WRITE: i32 = 2;
const MAP_SHARED: i32 = 1;
const MAP_NORESERVE: i32 = 0x4000;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// A file of `pages` pages, each filled with `fill`.
    pub(crate) fn file(pages: u64, fill: u8) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![fill; (pages * PAGE) as usize], 0)
            .unwrap();
        file
    }

    pub(crate) fn contents(file: &File, page: u64, pages: u64) -> Vec<u8> {
        let mut bytes = vec![0; (pages * PAGE) as usize];
        file.read_exact_at(&mut bytes, page * PAGE).unwrap();
        bytes
    }

    #[test]
    fn only_the_mapped_part_of_the_file_changes() {
        let ram = file(4, 0x11);
        let mut memory = GuestMemory::default();
        memory
            .map(ram.try_clone().unwrap(), PAGE, 0x10_0000, 2 * PAGE, true)
            .unwrap();
        memory.write(0x10_0ffe, &[1, 2, 3, 4]).unwrap();
        let mut back = [0; 4];
        memory.read(0x10_0ffe, &mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 4]);
        assert!(memory.write(0x10_1ffe, &[9; 4]).is_err());
        assert!(memory.write(0x0f_fffe, &[9; 4]).is_err());
        assert!(memory.read(u64::MAX, &mut back).is_err());
        assert_eq!(contents(&ram, 0, 1), vec![0x11; 4096]);
        assert_eq!(contents(&ram, 3, 1), vec![0x11; 4096]);
    }

    #[test]
    fn an_access_may_cross_adjacent_regions() {
        let mut memory = GuestMemory::default();
        memory.map(file(1, 0), 0, 0x1000, PAGE, true).unwrap();
        memory.map(file(1, 0), 0, 0x2000, PAGE, true).unwrap();
        memory.write(0x1ffc, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        let mut back = [0; 8];
        memory.read(0x1ffc, &mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn read_only_regions_are_never_written() {
        let ram = file(1, 7);
        let mut memory = GuestMemory::default();
        memory
            .map(ram.try_clone().unwrap(), 0, 0x1000, PAGE, false)
            .unwrap();
        assert!(memory.write(0x1000, &[1]).is_err());
        assert!(memory.publish_u32(0x1000, 1).is_err());
        let mut byte = [0];
        memory.read(0x1000, &mut byte).unwrap();
        assert_eq!(byte, [7]);
    }

    #[test]
    fn bad_ranges_are_refused() {
        let mut memory = GuestMemory::default();
        let mut map = |offset, address, size| memory.map(file(2, 0), offset, address, size, true);
        assert!(matches!(map(0, 0x1000, 0), Err(MapError::Range { .. })));
        assert!(matches!(map(0, 0x1001, PAGE), Err(MapError::Range { .. })));
        assert!(matches!(map(12, 0x1000, PAGE), Err(MapError::Range { .. })));
        assert!(matches!(
            map(0, u64::MAX - PAGE + 1, PAGE),
            Err(MapError::Range { .. })
        ));
        assert!(matches!(
            map(0, 0x1000, 3 * PAGE),
            Err(MapError::File { .. })
        ));
        assert!(matches!(
            map(u64::MAX - PAGE + 1, 0x1000, PAGE),
            Err(MapError::File { .. })
        ));
        map(0, 0x1000, 2 * PAGE).unwrap();
        assert!(matches!(
            map(0, 0x2000, PAGE),
            Err(MapError::Overlap { .. })
        ));
        assert!(matches!(
            memory.unmap(0x1000, PAGE),
            Err(MapError::Partial { .. })
        ));
        memory.unmap(0x1000, 2 * PAGE).unwrap();
        assert!(memory.read(0x1000, &mut [0]).is_err());
    }
}
