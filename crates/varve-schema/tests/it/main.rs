//! Rows as bytes: golden files, mutations, sizes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod acl;
mod exercise;
mod golden;
mod mutation;
mod overlay;
mod samples;
mod sizes;
