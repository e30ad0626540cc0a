//! Physical region pages: where a command's data lies in guest memory
//! (NVM Express Base Specification 1.4, section 4.3).

use super::command::{Command, Status};
use crate::bytes::u64_at;
use crate::memory::{GuestMemory, PAGE};

/// Most data that one command may move; what MDTS announces.
pub(crate) const MAX_TRANSFER: usize = 32 * PAGE as usize;

/// A contiguous piece of guest memory, at most a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) length: usize,
}

/// The segments of `length` bytes described by the command's PRP entries.
/// The number of list entries read is bounded by the length, so a list that
/// points to itself ends too.
pub(crate) fn segments(
    command: &Command,
    length: usize,
    memory: &GuestMemory,
) -> Result<Vec<Segment>, Status> {
    const PAGE_LEN: usize = PAGE as usize;
    if length > MAX_TRANSFER {
        return Err(Status::INVALID_FIELD);
    }
    let first = command.prp1();
    if !first.is_multiple_of(4) {
        return Err(Status::INVALID_PRP_OFFSET);
    }
    let first_len = (PAGE_LEN - (first % PAGE) as usize).min(length);
    let mut segments = vec![Segment {
        address: first,
        length: first_len,
    }];
    let mut left = length - first_len;
    if left == 0 {
        return Ok(segments);
    }
    let second = command.prp2();
    if left <= PAGE_LEN {
        segments.push(page(second, left)?);
        return Ok(segments);
    }

    let mut list = second;
    if !list.is_multiple_of(8) {
        return Err(Status::INVALID_PRP_OFFSET);
    }
    loop {
        let slots = ((PAGE - list % PAGE) / 8) as usize;
        let needed = left.div_ceil(PAGE_LEN);
        let mut bytes = vec![0; slots.min(needed) * 8];
        memory
            .read(list, &mut bytes)
            .map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        // With more entries to come, the last slot of the page points to the next list.
        let here = if needed > slots { slots - 1 } else { needed };
        for entry in bytes.chunks_exact(8).take(here) {
            let length = left.min(PAGE_LEN);
            segments.push(page(u64_at(entry, 0).unwrap_or_default(), length)?);
            left -= length;
        }
        if left == 0 {
            return Ok(segments);
        }
        list = u64_at(&bytes, here * 8).unwrap_or_default();
        if !list.is_multiple_of(PAGE) {
            return Err(Status::INVALID_PRP_OFFSET);
        }
    }
}

fn page(address: u64, length: usize) -> Result<Segment, Status> {
    if address.is_multiple_of(PAGE) {
        Ok(Segment { address, length })
    } else {
        Err(Status::INVALID_PRP_OFFSET)
    }
}

/// Writes `data` to the memory that the command's PRP entries describe.
pub(crate) fn write(command: &Command, data: &[u8], memory: &GuestMemory) -> Result<(), Status> {
    let mut rest = data;
    for segment in segments(command, data.len(), memory)? {
        let (part, tail) = rest.split_at(segment.length.min(rest.len()));
        memory
            .write(segment.address, part)
            .map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        rest = tail;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::put;
    use crate::memory::tests::file;

    fn command(prp1: u64, prp2: u64) -> Command {
        let mut bytes = [0; 64];
        put(&mut bytes, 24, &prp1.to_le_bytes());
        put(&mut bytes, 32, &prp2.to_le_bytes());
        Command(bytes)
    }

    fn memory() -> GuestMemory {
        let mut memory = GuestMemory::default();
        memory.map(file(8, 0), 0, 0, 8 * PAGE, true).unwrap();
        memory
    }

    fn write_list(memory: &GuestMemory, at: u64, entries: &[u64]) {
        let bytes: Vec<u8> = entries
            .iter()
            .flat_map(|entry| entry.to_le_bytes())
            .collect();
        memory.write(at, &bytes).unwrap();
    }

    #[test]
    fn one_or_two_pages_need_no_list() {
        let memory = memory();
        let one = segments(&command(0x1000, 0), 512, &memory).unwrap();
        assert_eq!(
            one,
            [Segment {
                address: 0x1000,
                length: 512
            }]
        );
        let two = segments(&command(0x1e00, 0x5000), 4096, &memory).unwrap();
        assert_eq!(
            two[0],
            Segment {
                address: 0x1e00,
                length: 512
            }
        );
        assert_eq!(
            two[1],
            Segment {
                address: 0x5000,
                length: 3584
            }
        );
    }

    #[test]
    fn a_list_may_continue_on_another_page() {
        let memory = memory();
        // Three slots are left on this page, the third one a pointer.
        write_list(&memory, 0x2000 - 24, &[0x10_0000, 0x11_0000, 0x3000]);
        write_list(&memory, 0x3000, &[0x12_0000, 0x13_0000]);
        let found = segments(&command(0x8000, 0x2000 - 24), 5 * 4096, &memory).unwrap();
        let addresses: Vec<u64> = found.iter().map(|segment| segment.address).collect();
        assert_eq!(
            addresses,
            [0x8000, 0x10_0000, 0x11_0000, 0x12_0000, 0x13_0000]
        );
        assert_eq!(
            found.iter().map(|segment| segment.length).sum::<usize>(),
            5 * 4096
        );
    }

    #[test]
    fn a_list_that_points_to_itself_ends() {
        let memory = memory();
        // The only slot on the page is the pointer, to a page of zero entries.
        write_list(&memory, 0x2000 - 8, &[0x4000]);
        let found = segments(&command(0, 0x2000 - 8), MAX_TRANSFER, &memory).unwrap();
        assert_eq!(found.len(), 32);
        write_list(&memory, 0x2000 - 8, &[0x2000 - 8]);
        let refused = segments(&command(0, 0x2000 - 8), MAX_TRANSFER, &memory);
        assert_eq!(refused, Err(Status::INVALID_PRP_OFFSET));
    }

    #[test]
    fn bad_entries_get_the_right_status() {
        let memory = memory();
        let status = |prp1, prp2, length| segments(&command(prp1, prp2), length, &memory).err();
        assert_eq!(status(0x1001, 0, 512), Some(Status::INVALID_PRP_OFFSET));
        assert_eq!(
            status(0x1000, 0x2004, 8192),
            Some(Status::INVALID_PRP_OFFSET)
        );
        assert_eq!(
            status(0x1000, 0x2004, 3 * 4096),
            Some(Status::INVALID_PRP_OFFSET)
        );
        assert_eq!(
            status(0x1000, 0x9_0000, 3 * 4096),
            Some(Status::DATA_TRANSFER_ERROR)
        );
        assert_eq!(
            status(0x1000, 0, MAX_TRANSFER + 1),
            Some(Status::INVALID_FIELD)
        );
    }
}
