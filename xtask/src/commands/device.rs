//! `cargo xtask device`: serves one emulated VMD. The lab starts it; by hand it
//! is of use to look at the device alone.

pub(crate) use vmd_device::{Args, run};
