//! I/O commands (NVM Express NVM Command Set, section 6 of revision 1.4).

use super::command::{Command, Outcome, Status};
use super::prp;
use super::store::Store;
use crate::counters::QueueCounters;
use crate::memory::GuestMemory;

const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const WRITE_ZEROES: u8 = 0x08;

const ALL_NAMESPACES: u32 = u32::MAX;

/// Counts a command that was taken from an I/O queue.
pub(crate) fn count(command: &Command, counters: &mut QueueCounters) {
    match command.opcode() {
        READ => counters.reads += 1,
        WRITE => counters.writes += 1,
        FLUSH => counters.flushes += 1,
        WRITE_ZEROES => counters.write_zeroes += 1,
        _ => counters.other += 1,
    }
}

/// Executes a command from an I/O queue.
pub(crate) fn execute(command: &Command, namespaces: &[Store], memory: &GuestMemory) -> Outcome {
    if command.flags() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let opcode = command.opcode();
    if opcode == FLUSH && command.namespace() == ALL_NAMESPACES {
        return Ok(0);
    }
    // Namespaces are numbered from 1.
    let store = (command.namespace() as usize)
        .checked_sub(1)
        .and_then(|index| namespaces.get(index))
        .ok_or(Status::INVALID_NAMESPACE)?;
    match opcode {
        // Nothing is held back, so there is nothing to flush.
        FLUSH => {}
        READ | WRITE | WRITE_ZEROES => {
            let first = u64::from(command.dword(10)) | u64::from(command.dword(11)) << 32;
            let blocks = u64::from(command.low(12)) + 1;
            // For write zeroes the limit is the one announced as WZSL.
            if blocks * store.block() > prp::MAX_TRANSFER as u64 {
                return Err(Status::INVALID_FIELD);
            }
            let extent = store.extent(first, blocks)?;
            if opcode == WRITE_ZEROES {
                store.zero(extent)?;
                return Ok(0);
            }
            let segments = prp::segments(command, extent.length(), memory)?;
            if opcode == READ {
                store.read(extent, &segments, memory)?;
            } else {
                store.write(extent, &segments, memory)?;
            }
        }
        _ => return Err(Status::INVALID_OPCODE),
    }
    Ok(0)
}
