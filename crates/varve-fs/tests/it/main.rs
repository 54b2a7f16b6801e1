//! Tests of the file system through its public interface.
#![allow(missing_docs)]

mod against_model;
mod names;
mod support;
