//! Tests of the test kit: what it compares it must be able to tell apart.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod canary;
mod coverage;
mod kv;
