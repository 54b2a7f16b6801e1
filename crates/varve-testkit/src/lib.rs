//! Oracles, operation generators and crash enumeration for tests.
//!
//! - [`model`] is the one definition of a correct file system.
//! - [`fsops`] makes random operations on file systems, runs them in lockstep with the model, and compares answers
//!   and trees.
//! - [`kvops`] does the same for key-value stores, and knows which states may be found after a crash.
//! - [`crash`] enumerates crash points and the states that may be found after them.
//! - [`hooked`] puts hooks before calls of a simulated machine.
//! - [`eventually`] waits for other threads and processes, and [`at_end`] ends the ones that a test has started.
//! - [`Command`] starts programs without copies of descriptors that other threads close, and [`put_program`] puts a
//!   program where it can be executed.
//! - [`soak()`] repeats a test with other seeds.
//! - [`skipped`] reports a test that this machine cannot run.
//! - [`S3Server`] is a real object store, and [`Proxy`] a slow or broken network before it.
//! - [`golden()`] compares with files of earlier versions.

mod command;
pub mod crash;
pub mod fsops;
mod golden;
pub mod hooked;
pub mod kvops;
pub mod model;
mod proxy;
pub mod rng;
mod s3;
mod skip;
mod soak;
mod wait;

pub use command::{Command, put_program, put_script};
pub use golden::golden;
pub use proxy::Proxy;
pub use s3::{S3Server, Tls};
pub use skip::{skipped, there_are_rings, there_is};
pub use soak::soak;
pub use wait::{AtEnd, PATIENCE, at_end, eventually};
