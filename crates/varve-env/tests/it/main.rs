//! The promises every machine keeps, run on the real one and on the simulated one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod copies;
mod crash;
mod promises;
mod room;
