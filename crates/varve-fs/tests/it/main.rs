//! Tests of the file system through its public interface.
#![allow(missing_docs)]

mod names;
mod support;
