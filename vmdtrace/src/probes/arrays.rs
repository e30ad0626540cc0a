//! The arrays that a Snapshot is made of, read in place. Once they are mapped that
//! takes no call to the kernel and no privilege, so it does not matter which
//! process loaded the programs.

use std::{os::fd::AsFd, sync::Arc};

use serde::{Deserialize, Serialize};
use vmdtrace_common::{
    CpuBank, LineCell, LossTotals, Place,
    bio_cells::{BioBank, BioSet, SETS},
    cells::kind,
    msi::MsiTotals,
    samples,
};

use super::{
    LoadError, Sizes,
    bio::Cache,
    counts::{action_of, bio_counts, cpu_counts, line_counts, run_counts, sample_counts},
    mapped::{Access, MappedArray, Writable},
    shares::{self, NumberedShare, Shares},
};
use crate::snapshot::{
    Counters, DiskSamples, LineCounts, Losses, MsiCounts, RunCounts, SampleCounts,
};

/// Names of the maps behind [`Arrays`].
pub const NAMES: [&str; 11] = [
    "CELLS",
    "BANKS",
    "LOSS_TOTALS",
    "MSI_TOTALS",
    "PLACES",
    "SAMPLES",
    "BIO_BANKS",
    "BIO_SETS",
    "BIO_REGIMES",
    shares::LINE_OWNERS,
    shares::SHARES,
];

/// What has to be known to read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub sizes: Sizes,
    /// Whether repeated runs can be told.
    pub repeats_known: bool,
    /// The cache of bios, where there is one.
    pub bio_cache: Option<Cache>,
    /// Whether what each CPU does for each owner is counted.
    pub shares: bool,
}

/// The arrays. Only what user space has to tell the programs can be written: some
/// of the others hold what the programs take for addresses in the kernel.
#[derive(Debug)]
pub struct Arrays {
    facts: Facts,
    cells: MappedArray<LineCell>,
    banks: MappedArray<CpuBank, Writable>,
    loss_totals: MappedArray<LossTotals>,
    msi_totals: Arc<MappedArray<MsiTotals>>,
    places: MappedArray<Place, Writable>,
    samples: MappedArray<samples::DiskSamples>,
    bio_banks: MappedArray<BioBank>,
    bio_sets: MappedArray<BioSet>,
    bio_regimes: MappedArray<u64>,
    /// Where they are counted.
    shares: Option<Shares>,
}

impl Arrays {
    /// Maps all. `descriptor` is asked for each of [`NAMES`] once; it may be closed
    /// afterwards.
    ///
    /// # Errors
    /// What it or mmap says.
    pub fn map<D: AsFd>(
        facts: Facts,
        descriptor: impl Fn(&'static str) -> Result<D, LoadError>,
    ) -> Result<Self, LoadError> {
        let Sizes { cpus, slots, .. } = facts.sizes;
        let shares = if facts.shares {
            let lengths = shares::lengths(facts.sizes, true);
            Some(Shares::new(
                mapped(shares::LINE_OWNERS, &descriptor, lengths.owners)?,
                mapped(shares::SHARES, &descriptor, lengths.shares)?,
            ))
        } else {
            None
        };
        Ok(Self {
            facts,
            cells: mapped("CELLS", &descriptor, slots)?,
            banks: mapped("BANKS", &descriptor, cpus)?,
            loss_totals: mapped("LOSS_TOTALS", &descriptor, 1)?,
            msi_totals: Arc::new(mapped("MSI_TOTALS", &descriptor, 1)?),
            places: mapped("PLACES", &descriptor, cpus)?,
            samples: mapped("SAMPLES", &descriptor, samples::DISKS)?,
            bio_banks: mapped("BIO_BANKS", &descriptor, cpus)?,
            bio_sets: mapped("BIO_SETS", &descriptor, SETS as u32)?,
            bio_regimes: mapped("BIO_REGIMES", &descriptor, 1)?,
            shares,
        })
    }

    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Devices came or went: names are learned again.
    pub fn raise_generation(&self) {
        self.banks.raise_generation();
    }

    /// Lets a CPU count on which no program runs now.
    pub fn arm(&self, cpu: u32) {
        self.banks.arm(cpu);
    }

    /// Tells where the CPUs are, by number. Until then, and for CPUs that are not
    /// named, the distance of completions is unknown.
    pub fn set_places(&self, places: &[Place]) {
        self.places.set_all(places);
    }

    /// Tells whose each line is that has run, by number and name: a number of
    /// [`vmdtrace_common::shares`]. Does nothing where shares are not counted. Not to
    /// be called by two threads at once.
    pub fn set_owners(&self, mut owner: impl FnMut(u32, &str) -> u8) {
        if let Some(shares) = &self.shares {
            self.each_line(|slot, cell| shares.set_owner(slot, owner(cell.irq, &action_of(cell))));
        }
    }

    /// What each CPU did for each owner so far; nothing where that is not counted.
    #[must_use]
    pub fn shares(&self) -> Vec<NumberedShare> {
        self.shares.iter().flat_map(Shares::read).collect()
    }

    /// Completions outside any handler so far. Each is added to its disk's in the map
    /// first: who has read the map since this was at some number has all of them.
    #[must_use]
    pub fn completions_outside(&self) -> u64 {
        let of_cpus = self.banks.iter().map(|bank| bank.completions_outside);
        of_cpus.fold(0, u64::saturating_add)
    }

    #[must_use]
    pub fn loss_totals(&self) -> LossTotals {
        self.loss_totals.get(0).unwrap_or_default()
    }

    #[must_use]
    pub fn msi_totals(&self) -> MsiTotals {
        self.msi_totals.get(0).unwrap_or_default()
    }

    /// The same, for who reads nothing else.
    #[must_use]
    pub fn share_msi_totals(&self) -> Arc<MappedArray<MsiTotals>> {
        Arc::clone(&self.msi_totals)
    }

    /// Everything counted so far, without who owns the lines and without what is in
    /// hash maps. No system call.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut lines = Vec::new();
        self.each_line(|_, cell| lines.push(self.line_counts(cell)));
        Counters {
            lines,
            ..self.counters_without_lines()
        }
    }

    /// Calls `see` with each line's slot and cell.
    pub fn each_line(&self, mut see: impl FnMut(u32, &LineCell)) {
        for slot in 0..self.cells.length() {
            // Most slots of a table are never taken.
            if !self.cells.is_ready(slot) {
                continue;
            }
            // The kind may have been read just before the slot was described.
            if let Some(cell) = self.cells.get(slot)
                && cell.kind != kind::NONE
            {
                see(slot, &cell);
            }
        }
    }

    /// A line's counters, without who owns it.
    #[must_use]
    pub fn line_counts(&self, cell: &LineCell) -> LineCounts {
        let parent = cell.parent.checked_sub(1);
        let parent = parent.and_then(|slot| self.cells.get(slot));
        let parent_irq = parent.map(|parent| parent.irq);
        line_counts(cell, parent_irq, self.facts.repeats_known)
    }

    /// What was counted on a line, alone.
    #[must_use]
    pub fn run_counts(&self, cell: &LineCell) -> RunCounts {
        run_counts(cell, self.facts.repeats_known)
    }

    /// As [`Arrays::counters`], without any line.
    #[must_use]
    pub fn counters_without_lines(&self) -> Counters {
        let mut of_disks = self.samples.iter().map(|of_disk| sample_counts(&of_disk));
        let other_samples = of_disks.next().unwrap_or_default();
        let samples = of_disks.zip(0..).filter_map(|(counts, number)| {
            (counts != SampleCounts::default()).then(|| DiskSamples {
                disk: format!("nvme{number}"),
                controller: None,
                counts,
            })
        });
        Counters {
            // Live joins these with the disks and controllers.
            losses: Losses::default(),
            outside: Vec::new(),
            shares: Vec::new(),
            msi: MsiCounts::default(),
            samples: samples.collect(),
            other_samples,
            lines: Vec::new(),
            cpus: self
                .banks
                .iter()
                .zip(0..)
                .map(|(bank, cpu)| cpu_counts(cpu, &bank))
                .collect(),
            bio: bio_counts(
                self.bio_banks.iter(),
                &self.bio_sets.iter().collect::<Vec<_>>(),
                self.facts.bio_cache,
                self.bio_regimes.get(0).unwrap_or_default(),
            ),
        }
    }
}

fn mapped<T, A: Access, D: AsFd>(
    map: &'static str,
    descriptor: impl Fn(&'static str) -> Result<D, LoadError>,
    length: u32,
) -> Result<MappedArray<T, A>, LoadError> {
    MappedArray::new(descriptor(map)?, length).map_err(|error| LoadError::Map {
        map,
        source: error.into(),
    })
}
