//! Stores on storage that many machines reach.
mod objects;

pub use objects::{Created, LIST_MAX, ObjectInfo, Objects, Retry, is_transient, transient};
