//! Messages as bytes.
#![allow(missing_docs, clippy::unwrap_used)]

mod golden;
mod samples;
