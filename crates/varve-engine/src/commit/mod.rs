//! The way of a write into the store, from the batch to tables of level 0.
//!
//! 1. [`write`](mod@write) checks a batch, finds room for it ([`room`]) and waits for locks in its way.
//! 2. [`log`] logs it and applies it to the active memtable; a sync makes the log durable.
//! 3. [`flush`] turns a full memtable into tables, which the version set takes ([`crate::versions`]).
//! 4. [`ingest`] takes whole tables past log and memtable; [`keyspace`] makes and clears key spaces.
//! 5. [`work`] tells the background threads what is due.

pub(crate) mod flush;
pub(crate) mod ingest;
pub(crate) mod keyspace;
pub(crate) mod log;
pub(crate) mod room;
pub(crate) mod work;
pub(crate) mod write;
