//! A guest whose memory, queues and doorbells hold anything.

use arbitrary::{Arbitrary, Unstructured};

use super::guest::{Address, Command, Guest, Io, Place, QUEUES, Ring, Speed};

/// Operations of one input; more are left out, so that an input's time is bounded.
const MAX_STEPS: usize = 64;

/// What the guest does after it has enabled the disk.
#[derive(Arbitrary, Debug)]
struct Input {
    bypass: bool,
    speed: Speed,
    /// Entries of the I/O queues, less two.
    entries: [u8; QUEUES - 1],
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// An I/O command as a driver makes it, told to the device.
    Io {
        queue: u8,
        io: Io,
    },
    /// Lets so many microseconds pass.
    Pass {
        micros: u8,
    },
    /// Puts a command at the tail of a queue.
    Submit {
        queue: u8,
        command: Command,
    },
    /// Tells the device of all commands that were put.
    Ring {
        queue: u8,
    },
    /// Takes completions as a driver does.
    Consume {
        queue: u8,
    },
    Doorbell {
        queue: u8,
        ring: Ring,
        value: u16,
    },
    /// A list of pages, or part of one.
    List {
        place: Place,
        entries: Vec<Address>,
    },
    /// Anything, anywhere in the guest's memory.
    Fill {
        place: Place,
        bytes: Vec<u8>,
    },
    /// A register of the disk.
    Register {
        offset: u16,
        value: u64,
        wide: bool,
    },
    /// An entry of the disk's MSI-X table.
    Vector {
        vector: u8,
        address: u64,
        masked: bool,
    },
    Access {
        region: u8,
        offset: u32,
        data: Vec<u8>,
    },
    Read {
        region: u8,
        offset: u32,
        count: u16,
    },
    /// Takes the second half of the RAM away, or gives it back.
    Map {
        present: bool,
    },
    Event,
    /// Enables the disk again, with its I/O queues, after whatever happened to it.
    Restart {
        bypass: bool,
    },
    Reset,
}

/// Runs one guest, and checks after each step that nothing outside its memory
/// was touched and that the counts are right.
///
/// # Panics
///
/// If the device breaks a promise.
pub fn run(input: &[u8]) {
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(input)) else {
        return;
    };
    let Some(mut guest) = Guest::new(input.speed) else {
        return;
    };
    guest.start(input.bypass, &input.entries);
    for step in input.steps.into_iter().take(MAX_STEPS) {
        match step {
            Step::Io { queue, io } => guest.io(queue, io),
            Step::Pass { micros } => guest.pass(micros),
            Step::Submit { queue, command } => guest.submit(queue, &command),
            Step::Ring { queue } => guest.ring(queue),
            Step::Consume { queue } => guest.consume(queue),
            Step::Doorbell { queue, ring, value } => guest.doorbell(queue, ring, value),
            Step::List { place, entries } => {
                let bytes: Vec<u8> = entries
                    .iter()
                    .flat_map(|entry| entry.get().to_le_bytes())
                    .collect();
                guest.fill(place, &bytes);
            }
            Step::Fill { place, bytes } => guest.fill(place, &bytes),
            Step::Register {
                offset,
                value,
                wide,
            } => guest.register(offset, value, wide),
            Step::Vector {
                vector,
                address,
                masked,
            } => guest.vector(vector, address, masked),
            Step::Access {
                region,
                offset,
                data,
            } => guest.access(region, offset, &data),
            Step::Read {
                region,
                offset,
                count,
            } => guest.read(region, offset, count),
            Step::Map { present } => guest.map_second_half(present),
            Step::Event => guest.event(),
            Step::Restart { bypass } => guest.start(bypass, &input.entries),
            Step::Reset => guest.reset(),
        }
        guest.check();
    }
    guest.check_end();
}
