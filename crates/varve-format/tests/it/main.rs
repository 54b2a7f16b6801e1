//! What the crate promises from outside: stable bytes and decoders that bear any input.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod exercise;
mod golden;
mod mutation;
mod oracle;
mod random;
mod sample;
