//! Small runs of everything, as a user starts them.
#![allow(clippy::disallowed_methods, reason = "the tests look at the disk itself")]

mod compare;
mod faults;
mod rpc;
mod support;
mod targets;
mod tools;
mod transactions;
mod versions;
