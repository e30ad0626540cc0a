//! A namespace's blocks: private memory that costs something only where it was written.

use vm_memory::mmap::MmapRegionError;
use vm_memory::{MmapRegion, VolatileMemory};

use super::command::Status;
use super::prp::Segment;
use crate::config::BlockSize;
use crate::memory::{GuestMemory, PAGE};

/// The data of one namespace.
#[derive(Debug)]
pub(crate) struct Store {
    data: MmapRegion,
    /// Bytes of a block.
    block: u64,
}

/// A range of bytes that lies inside the namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    offset: usize,
    length: usize,
}

impl Extent {
    pub(crate) fn length(self) -> usize {
        self.length
    }
}

impl Store {
    /// `bytes` zeroes in blocks of `block` bytes.
    pub(crate) fn new(bytes: u64, block: BlockSize) -> Result<Self, MmapRegionError> {
        let length = usize::try_from(bytes).map_err(|_| MmapRegionError::InvalidOffsetLength)?;
        // Anonymous, private and without reservation of swap.
        Ok(Self {
            data: MmapRegion::new(length)?,
            block: block.bytes(),
        })
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.data.size() as u64 / self.block
    }

    /// Bytes of a block.
    pub(crate) fn block(&self) -> u64 {
        self.block
    }

    /// The bytes of `blocks` blocks from `first` on, if there are so many.
    pub(crate) fn extent(&self, first: u64, blocks: u64) -> Result<Extent, Status> {
        let end = first.checked_add(blocks).ok_or(Status::LBA_OUT_OF_RANGE)?;
        if end > self.blocks() {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        Ok(Extent {
            offset: (first * self.block) as usize,
            length: (blocks * self.block) as usize,
        })
    }

    /// Copies blocks to guest memory.
    pub(crate) fn read(
        &self,
        extent: Extent,
        segments: &[Segment],
        memory: &GuestMemory,
    ) -> Result<(), Status> {
        self.transfer(extent, segments, |slice, address, bounce| {
            slice.copy_to(bounce);
            memory.write(address, bounce)
        })
    }

    /// Copies blocks from guest memory.
    pub(crate) fn write(
        &self,
        extent: Extent,
        segments: &[Segment],
        memory: &GuestMemory,
    ) -> Result<(), Status> {
        self.transfer(extent, segments, |slice, address, bounce| {
            memory.read(address, bounce)?;
            slice.copy_from(bounce);
            Ok(())
        })
    }

    /// Sets blocks to zero.
    pub(crate) fn zero(&self, extent: Extent) -> Result<(), Status> {
        let pages: Vec<Segment> = (0..extent.length)
            .step_by(PAGE as usize)
            .map(|done| Segment {
                address: 0,
                length: (extent.length - done).min(PAGE as usize),
            })
            .collect();
        self.transfer(extent, &pages, |slice, _, bounce| {
            slice.copy_from(bounce);
            Ok(())
        })
    }

    /// Calls `copy` with each segment's piece of the data and a zeroed buffer of its length.
    fn transfer(
        &self,
        extent: Extent,
        segments: &[Segment],
        mut copy: impl FnMut(
            vm_memory::VolatileSlice<'_, ()>,
            u64,
            &mut [u8],
        ) -> Result<(), crate::memory::Unmapped>,
    ) -> Result<(), Status> {
        let mut buffer = [0; PAGE as usize];
        let mut offset = extent.offset;
        for segment in segments {
            let slice = self
                .data
                .get_slice(offset, segment.length)
                .map_err(|_| Status::LBA_OUT_OF_RANGE)?;
            let bounce = buffer
                .get_mut(..segment.length)
                .ok_or(Status::INVALID_FIELD)?;
            copy(slice, segment.address, bounce).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            offset += segment.length;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::file;

    #[test]
    fn what_is_written_is_read_back_and_zeroed() {
        let mut memory = GuestMemory::default();
        memory.map(file(4, 0), 0, 0, 4 * PAGE, true).unwrap();
        let store = Store::new(1 << 20, BlockSize::B512).unwrap();
        let extent = store.extent(3, 3).unwrap();
        let pattern: Vec<u8> = (0..1536).map(|i| i as u8 ^ 0x5a).collect();
        memory.write(0x600, &pattern).unwrap();
        store
            .write(
                extent,
                &[Segment {
                    address: 0x600,
                    length: 1536,
                }],
                &memory,
            )
            .unwrap();
        let parts = [
            Segment {
                address: 0x2000,
                length: 512,
            },
            Segment {
                address: 0x3000,
                length: 1024,
            },
        ];
        store.read(extent, &parts, &memory).unwrap();
        let mut back = vec![0; 1536];
        memory.read(0x2000, &mut back[..512]).unwrap();
        memory.read(0x3000, &mut back[512..]).unwrap();
        assert_eq!(back, pattern);
        store.zero(store.extent(4, 2).unwrap()).unwrap();
        store
            .read(
                extent,
                &[Segment {
                    address: 0x600,
                    length: 1536,
                }],
                &memory,
            )
            .unwrap();
        memory.read(0x600, &mut back).unwrap();
        assert_eq!(back[..512], pattern[..512]);
        assert_eq!(back[512..], [0; 1024]);
    }

    #[test]
    fn ranges_beyond_the_end_are_refused() {
        let store = Store::new(8192, BlockSize::B4096).unwrap();
        assert_eq!(
            (store.blocks(), store.extent(1, 1).unwrap().offset),
            (2, 4096)
        );
        assert!(store.extent(0, 3).is_err());
        let store = Store::new(4096, BlockSize::B512).unwrap();
        assert_eq!(store.blocks(), 8);
        assert!(store.extent(0, 8).is_ok());
        assert!(store.extent(1, 8).is_err());
        assert!(store.extent(u64::MAX, 1).is_err());
        assert!(store.extent(u64::MAX / 512, 65536).is_err());
    }
}
