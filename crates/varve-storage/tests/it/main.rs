//! Stores on object stores, seen from outside.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod crash;
mod credentials;
mod damage;
mod objects;
mod owners;
mod support;
