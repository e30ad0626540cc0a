//! What server and helper can say to each other. A request is one byte, and for the
//! level of the log a second one, so the server can ask for these five things and for
//! nothing else. Whoever receives anything else closes the connection, which ends both.

use std::collections::HashMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;
use vmdtrace_common::{
    loss::{MAX_DISKS, MAX_OUTSIDE_DISKS},
    msi::{MAX_OPERATIONS, Operation},
};

use crate::{
    logging,
    probes::{
        arrays::{self, Facts},
        losses::{self, DiskName},
        msi::{self, ControllerName},
        outside::OutsideByName,
    },
    snapshot::{Probe, ProbeState},
};

/// Longest message, in bytes. Below the buffer that a socket has by default
/// (net.core.wmem_default, 212,992), since it has to fit into that whole.
pub const MAX_BYTES: usize = 128 * 1024;

/// Most programs, and most probes.
pub const MAX_PROBES: usize = 64;

/// Most descriptors with one message.
pub const MAX_DESCRIPTORS: usize = arrays::NAMES.len() + MAX_PROBES;

/// Longest reason for a state, in bytes; the middle of a longer one is left out.
const MAX_REASON: usize = 1_500;

/// What the server may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Attach what is not attached yet and can be now.
    Attach,
    /// What the map of time-outs holds.
    Losses,
    /// What the map of operations on interrupts holds.
    Operations,
    /// What the map of completions outside any handler holds.
    Outside,
    /// Log from now on what is at least this severe.
    LogLevel(logging::Level),
}

/// What the helper answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Unasked, first, and once: everything is loaded. With it come the descriptors of
    /// the maps, in the order of [`arrays::NAMES`], and of these programs.
    Loaded {
        facts: Facts,
        /// Kernel memory of all maps, in bytes.
        map_memory: Option<u64>,
        programs: Vec<String>,
        states: Vec<State>,
    },
    /// Instead of that: why nothing could be loaded.
    NotLoaded(String),
    Attached(Vec<State>),
    Losses(Vec<(DiskName, losses::Counts)>),
    /// Controller, index of the operation, count.
    Operations(Vec<(ControllerName, u8, u64)>),
    Outside(Vec<(DiskName, u64)>),
    /// What was asked for is done, and there is nothing to tell of it.
    Done,
    /// Why what was asked for could not be done.
    Failed(String),
}

/// A probe, without what the server reads itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    name: String,
    state: ProbeState,
    mechanism: String,
    reason: Option<String>,
}

impl From<Probe> for State {
    fn from(probe: Probe) -> Self {
        let Probe {
            name,
            state,
            mechanism,
            reason,
            missed_runs: _,
            runs: _,
        } = probe;
        Self {
            name,
            state,
            mechanism,
            reason: reason.map(cut),
        }
    }
}

impl From<State> for Probe {
    fn from(state: State) -> Self {
        let State {
            name,
            state,
            mechanism,
            reason,
        } = state;
        Self {
            name,
            state,
            mechanism,
            reason,
            missed_runs: None,
            runs: None,
        }
    }
}

/// The verifier's log can be long. It begins with which program it is of, and ends with
/// what is wrong.
fn cut(text: String) -> String {
    const GAP: &str = " ... ";
    const END: usize = MAX_REASON / 2;
    if text.len() <= MAX_REASON {
        return text;
    }
    let head = text.floor_char_boundary(MAX_REASON - END - GAP.len());
    let end = text.ceil_char_boundary(text.len() - END);
    let (head, end) = (text.get(..head), text.get(end..));
    [head.unwrap_or_default(), GAP, end.unwrap_or_default()].concat()
}

/// Why a message is none.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    #[error("it is no message: {0}")]
    Nonsense(#[from] postcard::Error),
    #[error("{0} bytes are left over")]
    LeftOver(usize),
    #[error("it has {count} {what}; {limit} are allowed")]
    TooMany {
        count: usize,
        what: &'static str,
        limit: usize,
    },
    #[error("there is no operation {0}")]
    NoOperation(u8),
}

impl Request {
    /// Its bytes.
    ///
    /// # Errors
    /// Never seen.
    pub fn encode(self) -> Result<Vec<u8>, ProtocolError> {
        encode(&self)
    }

    /// Reads a whole message.
    ///
    /// # Errors
    /// If it is anything but a request.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        decode(bytes)
    }
}

impl Reply {
    /// Why nothing could be loaded.
    #[must_use]
    pub fn not_loaded(reason: String) -> Self {
        Self::NotLoaded(cut(reason))
    }

    /// Why what was asked for could not be done.
    #[must_use]
    pub fn failed(reason: String) -> Self {
        Self::Failed(cut(reason))
    }

    #[must_use]
    pub fn losses(disks: HashMap<DiskName, losses::Counts>) -> Self {
        Self::Losses(disks.into_iter().collect())
    }

    #[must_use]
    pub fn outside(disks: OutsideByName) -> Self {
        let rows = disks.into_iter().map(|(disk, [count])| (disk, count));
        Self::Outside(rows.collect())
    }

    #[must_use]
    pub fn operations(controllers: HashMap<ControllerName, msi::Counts>) -> Self {
        let rows = controllers.into_iter().flat_map(|(controller, counts)| {
            (0..)
                .zip(counts)
                .filter(|(_, count)| *count > 0)
                .map(move |(operation, count)| (controller.clone(), operation, count))
        });
        Self::Operations(rows.collect())
    }

    /// Its bytes.
    ///
    /// # Errors
    /// If it is beyond the bounds.
    pub fn encode(&self) -> Result<Vec<u8>, ProtocolError> {
        self.check()?;
        let bytes = encode(self)?;
        at_most(bytes.len(), "bytes", MAX_BYTES)?;
        Ok(bytes)
    }

    /// Reads a whole message.
    ///
    /// # Errors
    /// If it is anything but a reply within the bounds.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        at_most(bytes.len(), "bytes", MAX_BYTES)?;
        let reply: Self = decode(bytes)?;
        reply.check()?;
        Ok(reply)
    }

    fn check(&self) -> Result<(), ProtocolError> {
        match self {
            Self::Loaded {
                facts: _,
                map_memory: _,
                programs,
                states,
            } => {
                at_most(programs.len(), "programs", MAX_PROBES)?;
                at_most(states.len(), "probes", MAX_PROBES)
            }
            Self::Attached(states) => at_most(states.len(), "probes", MAX_PROBES),
            Self::Losses(disks) => at_most(disks.len(), "disks", MAX_DISKS),
            Self::Outside(disks) => at_most(disks.len(), "disks", MAX_OUTSIDE_DISKS),
            Self::Operations(rows) => {
                at_most(rows.len(), "operations", MAX_OPERATIONS)?;
                let unknown = |(_, operation, _): &&(_, u8, _)| {
                    Operation::from_index(u32::from(*operation)).is_none()
                };
                match rows.iter().find(unknown) {
                    Some((_, operation, _)) => Err(ProtocolError::NoOperation(*operation)),
                    None => Ok(()),
                }
            }
            Self::NotLoaded(_) | Self::Done | Self::Failed(_) => Ok(()),
        }
    }
}

/// Rows of [`Reply::Operations`] by controller.
#[must_use]
pub fn operations_by_name(
    rows: Vec<(ControllerName, u8, u64)>,
) -> HashMap<ControllerName, msi::Counts> {
    let mut controllers: HashMap<_, msi::Counts> = HashMap::new();
    for (controller, operation, count) in rows {
        let counts = controllers.entry(controller).or_default();
        if let Some(sum) = counts.get_mut(usize::from(operation)) {
            *sum = sum.saturating_add(count);
        }
    }
    controllers
}

fn at_most(count: usize, what: &'static str, limit: usize) -> Result<(), ProtocolError> {
    if count > limit {
        return Err(ProtocolError::TooMany { count, what, limit });
    }
    Ok(())
}

fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ProtocolError> {
    Ok(postcard::to_stdvec(message)?)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ProtocolError> {
    match postcard::take_from_bytes(bytes)? {
        (message, []) => Ok(message),
        (_, rest) => Err(ProtocolError::LeftOver(rest.len())),
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use proptest::prelude::*;

    use super::*;
    use crate::probes::Sizes;

    const FACTS: Facts = Facts {
        sizes: Sizes {
            cpus: 4,
            interrupts: 5000,
            slots: 5000,
        },
        repeats_known: true,
        bio_cache: None,
        shares: true,
    };

    fn state(reason: Option<String>) -> State {
        Probe {
            name: "nvme_timeout".to_owned(),
            state: ProbeState::Blocked,
            mechanism: "kprobe".to_owned(),
            reason,
            missed_runs: None,
            runs: None,
        }
        .into()
    }

    #[test]
    fn a_request_is_a_byte_or_two_and_there_are_five() {
        let requests = [
            Request::Attach,
            Request::Losses,
            Request::Operations,
            Request::Outside,
        ];
        for (request, byte) in requests.into_iter().zip(0..) {
            assert_eq!(request.encode().unwrap(), [byte]);
            assert_eq!(Request::decode(&[byte]), Ok(request));
            assert_eq!(Request::decode(&[byte, 0]), Err(ProtocolError::LeftOver(1)));
        }
        for (level, byte) in logging::Level::value_variants().iter().zip(0..) {
            let request = Request::LogLevel(*level);
            assert_eq!(request.encode().unwrap(), [4, byte]);
            assert_eq!(Request::decode(&[4, byte]), Ok(request));
        }
        assert!(Request::decode(&[4, 5]).is_err());
        for byte in 4..=u8::MAX {
            assert!(Request::decode(&[byte]).is_err(), "{byte}");
        }
        assert!(Request::decode(&[]).is_err());
    }

    #[test]
    fn the_largest_replies_fit_and_larger_ones_are_refused() {
        // Bytes that are no text become three each.
        let name = |number: usize| format!("{number:04}{}", "\u{fffd}".repeat(28));
        let disks = |count| {
            let row = |number| (DiskName::BlockDevice(name(number)), [u64::MAX; 2]);
            Reply::Losses((0..count).map(row).collect())
        };
        let outside = |count| {
            let row = |number| (DiskName::BlockDevice(name(number)), u64::MAX);
            Reply::Outside((0..count).map(row).collect())
        };
        let operations = |count| {
            let row = |number| (ControllerName::Address(name(number)), 9, u64::MAX);
            Reply::Operations((0..count).map(row).collect())
        };
        let states = |count| Reply::Attached(vec![state(Some("x".repeat(100_000))); count]);
        for (largest, larger) in [
            (disks(MAX_DISKS), disks(MAX_DISKS + 1)),
            (outside(MAX_OUTSIDE_DISKS), outside(MAX_OUTSIDE_DISKS + 1)),
            (operations(MAX_OPERATIONS), operations(MAX_OPERATIONS + 1)),
            (states(MAX_PROBES), states(MAX_PROBES + 1)),
        ] {
            let bytes = largest.encode().unwrap();
            assert_eq!(Reply::decode(&bytes).unwrap(), largest);
            assert!(matches!(
                larger.encode(),
                Err(ProtocolError::TooMany { .. })
            ));
            let unchecked = encode(&larger).unwrap();
            assert!(Reply::decode(&unchecked).is_err());
        }
        assert!(Reply::Failed("x".repeat(MAX_BYTES)).encode().is_err());
        assert!(Reply::failed("x".repeat(MAX_BYTES)).encode().is_ok());
    }

    #[test]
    fn a_reason_is_cut_in_its_middle_where_characters_begin() {
        for shift in ["", "x"] {
            let long = format!("{shift}first {} last{shift}", "ö".repeat(2_000));
            let Some(reason) = state(Some(long)).reason else {
                panic!("no reason");
            };
            assert!(reason.starts_with(&format!("{shift}first ö")), "{reason}");
            assert!(reason.contains("ö ... ö"), "{reason}");
            assert!(reason.ends_with(&format!("ö last{shift}")), "{reason}");
            assert!(reason.len() <= MAX_REASON && reason.len() > MAX_REASON - 5);
        }
        assert_eq!(state(Some("short".into())).reason.unwrap(), "short");
    }

    #[test]
    fn operations_come_back_as_they_went() {
        let mut counts = [0; Operation::ALL.len()];
        counts[Operation::Free as usize] = 7;
        counts[Operation::Move as usize] = 1;
        let controllers = HashMap::from([
            (ControllerName::Domain(0x10000), counts),
            (ControllerName::Unknown, [3; Operation::ALL.len()]),
        ]);
        let Reply::Operations(rows) = Reply::operations(controllers.clone()) else {
            panic!("other rows");
        };
        assert_eq!(rows.len(), 12);
        assert_eq!(operations_by_name(rows), controllers);
        let unknown = Reply::Operations(vec![(ControllerName::Unknown, 10, 1)]);
        let bytes = encode(&unknown).unwrap();
        assert_eq!(Reply::decode(&bytes), Err(ProtocolError::NoOperation(10)));
    }

    fn replies() -> impl Strategy<Value = Reply> {
        let disk = (any::<u32>().prop_map(DiskName::Number), any::<[u64; 2]>());
        let outside = (
            any::<String>().prop_map(DiskName::BlockDevice),
            any::<u64>(),
        );
        let operation = (
            any::<u32>().prop_map(ControllerName::Domain),
            0..10u8,
            any::<u64>(),
        );
        let states = proptest::collection::vec(any::<Option<String>>().prop_map(state), 0..4);
        prop_oneof![
            states.clone().prop_map(Reply::Attached),
            states.prop_map(|states| Reply::Loaded {
                facts: FACTS,
                map_memory: Some(1),
                programs: vec!["nvme_sq".to_owned()],
                states
            }),
            any::<String>().prop_map(Reply::NotLoaded),
            any::<String>().prop_map(Reply::Failed),
            Just(Reply::Done),
            proptest::collection::vec(outside, 0..20).prop_map(Reply::Outside),
            proptest::collection::vec(disk, 0..20).prop_map(Reply::Losses),
            proptest::collection::vec(operation, 0..20).prop_map(Reply::Operations),
        ]
    }

    proptest! {
        /// Whatever arrives is refused, or is a message that is within the bounds.
        #[test]
        fn any_bytes_are_refused_or_a_message(
            bytes in proptest::collection::vec(any::<u8>(), 0..4096)
        ) {
            if let Ok(reply) = Reply::decode(&bytes) {
                prop_assert_eq!(Reply::decode(&reply.encode().unwrap()), Ok(reply));
            }
        }

        /// A request, if it is one, is what it says and no more.
        #[test]
        fn any_bytes_are_no_request_or_one(
            bytes in proptest::collection::vec(0..6u8, 0..4)
        ) {
            let is_one = matches!(bytes[..], [0..=3] | [4, 0..=4]);
            prop_assert_eq!(Request::decode(&bytes).is_ok(), is_one);
        }

        /// The same for messages with something wrong in them.
        #[test]
        fn broken_messages_are_refused_or_other_messages(
            reply in replies(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            length in any::<prop::sample::Index>(),
        ) {
            let mut bytes = reply.encode().unwrap();
            prop_assert_eq!(Reply::decode(&bytes), Ok(reply));
            // Cut short it is no message, or a part of what was said is left.
            let cut = length.index(bytes.len());
            prop_assert!(Reply::decode(&bytes[..cut]).is_err());
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(other) = Reply::decode(&bytes) {
                prop_assert!(other.encode().is_ok());
            }
        }
    }
}
