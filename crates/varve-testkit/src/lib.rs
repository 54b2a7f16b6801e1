//! Oracles, operation generators and crash enumeration for tests.
//!
//! [`model`] is the one definition of a correct file system.

pub mod model;
pub mod rng;
