//! Operations on a map of rows, against the model of a file system.

mod against_model;
mod map;
mod recount;
