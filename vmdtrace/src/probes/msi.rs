//! Operations on the interrupts behind a VMD, as the programs count them: by
//! what tells the controller, in a hash map, since they are rare.

use std::{collections::HashMap, mem::offset_of};

use aya::{Ebpf, maps};
use serde::{Deserialize, Serialize};
use vmdtrace_common::msi::{DOMAIN_PREFIX, Message, MsiTotals, Operation, OperationKey};

const KEY_BYTES: usize = size_of::<OperationKey>();
/// Bytes of a message.
pub const MESSAGE_BYTES: usize = size_of::<Message>();

/// How many of each [`Operation`], by its index.
pub type Counts = [u64; Operation::ALL.len()];

/// What tells the controller of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ControllerName {
    /// The PCI domain of its children.
    Domain(u32),
    /// Its own PCI address.
    Address(String),
    /// The interrupt number of one of its vectors.
    Vector(u32),
    Unknown,
}

/// All that was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationsByName {
    pub controllers: HashMap<ControllerName, Counts>,
    /// Operations that found no room in the map.
    pub unassigned: u64,
    pub allocation_failures: u64,
    /// Messages that found no room in the ring.
    pub lost_messages: u64,
}

impl OperationsByName {
    /// What was read from the map, and beside it.
    #[must_use]
    pub fn new(controllers: HashMap<ControllerName, Counts>, totals: &MsiTotals) -> Self {
        Self {
            controllers,
            unassigned: totals.unassigned,
            allocation_failures: totals.allocation_failures,
            lost_messages: totals.lost_messages,
        }
    }
}

/// Reads the map: a call to the kernel for each sort of operation that a controller
/// ever saw, and one more.
///
/// # Errors
/// If the object has no such map, or the kernel refuses.
pub fn read(ebpf: &Ebpf) -> anyhow::Result<HashMap<ControllerName, Counts>> {
    let map = ebpf
        .map("OPERATIONS")
        .ok_or_else(|| anyhow::anyhow!("the eBPF object has no map OPERATIONS"))?;
    let map: maps::HashMap<_, [u8; KEY_BYTES], u64> = map.try_into()?;
    let mut controllers: HashMap<_, Counts> = HashMap::new();
    for entry in &map {
        let (key, count) = entry?;
        let Some((operation, name)) = parse_key(&key) else {
            continue;
        };
        let counts = controllers.entry(name).or_default();
        if let Some(sum) = counts.get_mut(operation as usize) {
            *sum = sum.saturating_add(count);
        }
    }
    Ok(controllers)
}

/// A message of the programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub operation: Operation,
    pub controller: ControllerName,
    /// The interrupt it was about, if any.
    pub irq: Option<u32>,
    pub cpu: u32,
    /// The CPU a vector went to.
    pub to_cpu: u32,
}

impl Told {
    /// The bytes of a [`Message`]; None if they are none.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let message: &[u8; MESSAGE_BYTES] = bytes.get(..MESSAGE_BYTES)?.try_into().ok()?;
        let (operation, controller) = parse_key(message.first_chunk()?)?;
        Some(Self {
            operation,
            controller,
            irq: Some(word(message, offset_of!(Message, irq))?).filter(|irq| *irq != 0),
            cpu: word(message, offset_of!(Message, cpu))?,
            to_cpu: word(message, offset_of!(Message, to_cpu))?,
        })
    }
}

/// The bytes of an [`OperationKey`].
fn parse_key(key: &[u8; KEY_BYTES]) -> Option<(Operation, ControllerName)> {
    let operation = Operation::from_index(word(key, offset_of!(OperationKey, operation))?)?;
    let irq = word(key, offset_of!(OperationKey, irq))?;
    if irq != 0 {
        return Some((operation, ControllerName::Vector(irq)));
    }
    let name = key.get(offset_of!(OperationKey, name)..)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Some((operation, controller_name(&String::from_utf8_lossy(name))))
}

/// `VMD-MSI-65536`, later kernels add a number of their own, or a PCI address.
fn controller_name(name: &str) -> ControllerName {
    let prefix = std::str::from_utf8(&DOMAIN_PREFIX).unwrap_or_default();
    if let Some(rest) = name.strip_prefix(prefix) {
        let digits = rest.split(|it: char| !it.is_ascii_digit()).next();
        return match digits.and_then(|digits| digits.parse().ok()) {
            Some(domain) => ControllerName::Domain(domain),
            None => ControllerName::Unknown,
        };
    }
    if name.is_empty() {
        ControllerName::Unknown
    } else {
        ControllerName::Address(name.to_owned())
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_controller() {
        for (name, expected) in [
            ("VMD-MSI-65536", ControllerName::Domain(0x10000)),
            ("VMD-MSI-65537-2", ControllerName::Domain(0x10001)),
            ("VMD-MSI-", ControllerName::Unknown),
            ("VMD-MSI--1-9", ControllerName::Unknown),
            ("VMD-MSI-99999999999", ControllerName::Unknown),
            ("", ControllerName::Unknown),
            (
                "0000:97:00.5",
                ControllerName::Address("0000:97:00.5".into()),
            ),
        ] {
            assert_eq!(controller_name(name), expected, "{name}");
        }
    }

    #[test]
    fn messages_are_read_as_the_programs_write_them() {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut set = |at: usize, value: u32| {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        let key = offset_of!(Message, key);
        set(
            key + offset_of!(OperationKey, operation),
            Operation::Move as u32,
        );
        set(key + offset_of!(OperationKey, irq), 41);
        set(offset_of!(Message, irq), 41);
        set(offset_of!(Message, cpu), 2);
        set(offset_of!(Message, to_cpu), 3);
        assert_eq!(
            Told::parse(&bytes),
            Some(Told {
                operation: Operation::Move,
                controller: ControllerName::Vector(41),
                irq: Some(41),
                cpu: 2,
                to_cpu: 3,
            })
        );
        assert_eq!(Told::parse(&bytes[1..]), None);
        bytes[0] = 10;
        assert_eq!(Told::parse(&bytes), None, "no such operation");
    }
}
