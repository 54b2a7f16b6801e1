//! Operations on a map of rows, against the model of a file system.

#![allow(clippy::unwrap_used, reason = "a test")]

mod against_model;
mod map;
mod recount;
