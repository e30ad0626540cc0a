//! What the eBPF programs and user space share: the layout of the maps and the
//! accounting itself: of interrupts ([`accounting`]) and of bios ([`bio`]).
//!
//! The accounting is plain functions over plain data ([`accounting`]), so the
//! very code that runs in the kernel is run by ordinary unit tests against a
//! naive model. What it needs from its surroundings (the clock, the action's
//! name, a free slot) comes through [`World`].

#![cfg_attr(not(any(test, feature = "model")), no_std)]

pub mod accounting;
pub mod bio;
pub mod bio_cells;
#[cfg(any(test, feature = "model"))]
pub mod bio_model;
pub mod cells;
pub mod loss;
#[cfg(any(test, feature = "model"))]
pub mod model;
pub mod msi;
pub mod names;
pub mod placement;
pub mod samples;
pub mod shares;

pub use accounting::{CompletionWorld, Taken, World, completion, enter, exit};
pub use cells::{CpuBank, Frame, LineCell, LineEntry};
pub use loss::{DiskKey, DiskLosses, LossTotals, RequestLayout};
pub use names::{Name, NameTable};
pub use placement::Place;
