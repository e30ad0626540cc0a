//! Compiles action-name patterns into the [`NameTable`] that the eBPF programs
//! step through, one table look-up a byte.

use std::collections::HashMap;

use globset::Glob;
use regex_automata::{
    Anchored,
    dfa::{Automaton, dense},
    util::{start, syntax},
};
use thiserror::Error;
use vmdtrace_common::{NameTable, cells::kind};

/// Action names of VMD vectors: `vmd` up to 5.15, `vmd<N>` since
/// (drivers/pci/controller/vmd.c, vmd_alloc_irqs).
const VMD: &str = "^vmd[0-9]*$";
/// Action names of NVMe queues (drivers/nvme/host/pci.c, queue_request_irq).
const NVME: &str = "^nvme[0-9]+q[0-9]+$";

#[derive(Debug, Error)]
pub enum NamesError {
    #[error("--also-lines {pattern:?} is no glob: {reason}")]
    Glob { pattern: String, reason: String },
    #[error(
        "--also-lines: the patterns together need more than 256 states; use fewer or simpler ones"
    )]
    TooComplex,
}

/// The automaton for VMD vectors, NVMe queues and the lines that `also` names.
///
/// # Errors
/// If a pattern is no glob, or all together are too complex.
pub fn compile(also: &[String]) -> Result<Box<NameTable>, NamesError> {
    let mut patterns = vec![VMD.to_owned(), NVME.to_owned()];
    for pattern in also {
        let glob = Glob::new(pattern).map_err(|error| NamesError::Glob {
            pattern: pattern.clone(),
            reason: error.kind().to_string(),
        })?;
        patterns.push(glob.regex().to_owned());
    }
    let dfa = dense::Builder::new()
        .configure(
            dense::Config::new()
                .start_kind(regex_automata::dfa::StartKind::Anchored)
                .match_kind(regex_automata::MatchKind::All)
                // A bound for hostile patterns; 256 states of ours are far smaller.
                .determinize_size_limit(Some(8 << 20))
                .dfa_size_limit(Some(8 << 20))
                .minimize(true),
        )
        .syntax(syntax::Config::new().unicode(false).utf8(false))
        .build_many(&patterns)
        .map_err(|_| NamesError::TooComplex)?;
    let first = dfa
        .start_state(&start::Config::new().anchored(Anchored::Yes))
        .map_err(|_| NamesError::TooComplex)?;

    let mut table = Box::new(NameTable {
        next: [[0; 256]; 256],
        kind: [0; 256],
    });
    let mut numbers = HashMap::from([(first, 0u8)]);
    let mut states = vec![first];
    let mut index = 0;
    while let Some(state) = states.get(index).copied() {
        // Names end at a NUL: it leaves the state alone (see NameTable).
        table.next[index][0] = numbers.get(&state).copied().unwrap_or_default();
        for byte in 1..=u8::MAX {
            let next = dfa.next_state(state, byte);
            let number = match numbers.get(&next) {
                Some(number) => *number,
                None => {
                    let number = u8::try_from(states.len()).map_err(|_| NamesError::TooComplex)?;
                    numbers.insert(next, number);
                    states.push(next);
                    number
                }
            };
            table.next[index][usize::from(byte)] = number;
        }
        let end = dfa.next_eoi_state(state);
        if dfa.is_match_state(end) {
            let pattern = (0..dfa.match_len(end))
                .map(|at| dfa.match_pattern(end, at).as_usize())
                .min();
            table.kind[index] = match pattern {
                Some(0) => kind::VMD_VECTOR,
                Some(1) => kind::NVME,
                _ => kind::WATCHED,
            } as u8;
        }
        index += 1;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use vmdtrace_common::Name;

    use super::*;

    fn kind_of(table: &NameTable, name: &str) -> u32 {
        table.classify(&Name::new(name.as_bytes()))
    }

    #[test]
    fn vectors_and_queues_are_told_from_look_alikes() {
        let table = compile(&[]).unwrap();
        for name in ["vmd", "vmd0", "vmd12"] {
            assert_eq!(kind_of(&table, name), kind::VMD_VECTOR, "{name}");
        }
        for name in ["nvme0q0", "nvme11q128"] {
            assert_eq!(kind_of(&table, name), kind::NVME, "{name}");
        }
        for name in [
            "", "vm", "vmdx", "vmd0x", "xvmd0", "nvme0", "nvme0q", "nvmeq1", "nvme0q1x", "NVME0q1",
        ] {
            assert_eq!(kind_of(&table, name), kind::NONE, "{name}");
        }
    }

    #[test]
    fn globs_watch_other_lines_but_never_take_ours() {
        let table = compile(&["virtio*".into(), "eth[0-9]-?x-{1,2}".into(), "*0*".into()]).unwrap();
        for name in ["virtio1-req.0", "eth0-tx-1", "eth3-rx-2", "i8042-0"] {
            assert_eq!(kind_of(&table, name), kind::WATCHED, "{name}");
        }
        assert_eq!(kind_of(&table, "ethx-tx-1"), kind::NONE);
        assert_eq!(kind_of(&table, "vmd0"), kind::VMD_VECTOR);
        assert_eq!(kind_of(&table, "nvme0q0"), kind::NVME);
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let error = compile(&["eth[".into()]).unwrap_err().to_string();
        assert!(error.contains("eth["), "{error}");
        let heavy = format!("*a{}", "?".repeat(28));
        assert!(
            compile(&[heavy])
                .unwrap_err()
                .to_string()
                .contains("256 states")
        );
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_the_glob(
            pattern in "[a-c*?]{0,6}",
            name in "[a-c]{0,8}",
        ) {
            let table = compile(std::slice::from_ref(&pattern)).unwrap();
            let expected = Glob::new(&pattern).unwrap().compile_matcher().is_match(&name);
            prop_assert_eq!(kind_of(&table, &name) == kind::WATCHED, expected);
        }
    }
}
