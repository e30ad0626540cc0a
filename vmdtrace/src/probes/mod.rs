//! The eBPF programs as user space sees them: which hook, how attached, which
//! state and why; and their maps, read in place.
//!
//! - [`tracer`]: loads, attaches, reads.
//! - [`programs`]: which programs there are, and the state of each.
//! - [`hook`]: how a program is loaded and attached, and why not.
//! - [`loaded`]: what a Snapshot needs of the programs, whoever loaded them.
//! - [`arrays`]: the maps that are read in place.
//! - [`counts`]: map elements -> counters.
//! - [`object`]: the embedded eBPF object.
//! - [`names`]: action-name patterns -> the automaton the programs step through.
//! - [`bio`]: the programs for bios, and what they must know of the kernel.
//! - [`kernel`], [`requests`], [`btf`]: offsets and addresses of the running kernel.
//! - [`kallsyms`]: the kernel's list of symbols, which somebody else may have opened.
//! - [`tracefs`], [`perf`]: kprobes on functions of modules.
//! - [`losses`]: time-outs and lost interrupts, from a map.
//! - [`outside`]: completions outside any handler by disk, from a map.
//! - [`shares`]: what each CPU does for each controller.
//! - [`msi`], [`msi_messages`]: operations on interrupts, counted and told.
//! - [`mapped`]: arrays mapped into this process.
//! - [`messages`]: the programs' rare messages, to the log.
//! - [`threads`]: whether handlers only wake a thread.
//! - [`vmd_irq`]: a kprobe that only the self-test uses.
//! - [`privileges`], [`fdinfo`]: what we may do, and what the kernel skipped.

pub mod arrays;
pub mod bio;
pub mod btf;
pub mod counts;
pub mod fdinfo;
pub mod hook;
pub mod kallsyms;
pub mod kernel;
pub mod loaded;
pub mod losses;
pub mod mapped;
pub mod messages;
pub mod msi;
pub mod msi_messages;
pub mod names;
pub mod object;
pub mod outside;
pub mod perf;
pub mod privileges;
pub mod programs;
pub mod requests;
pub mod shares;
pub mod threads;
pub mod tracefs;
pub mod tracer;
pub mod vmd_irq;

pub use loaded::Loaded;
pub use tracer::{LoadError, Options, Sizes, Tracer};
