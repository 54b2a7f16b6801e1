//! Stores on storage that many machines reach: object stores, and directories of cluster file systems.
//!
//! [`RemoteEnv`] shows the files of a store below a local directory, its anchor, and keeps them as objects, so that
//! everything above works on any storage as it does on a local directory. Design: docs/adr, "Files over a journal of
//! objects".
//!
//! 1. [`Objects`] is what is asked of the storage: create if absent, replace, read a range, list, remove. `cloud` and `aws` ask it of
//!    servers, `shared` of a directory, `memory` of a test. [`Location`] is an address; `requests` tries again and counts.
//! 2. `record` says what the objects hold, `blocks` how bytes of files lie in them.
//! 3. `extents` and `node` know which bytes of a file lie where; `tree` knows the names.
//! 4. `store` makes records of changes, `replay` reads them; `owner` fences off the owner before and learns of the next one;
//!    `checkpoint` makes roots and removes what is left behind them, and `collect` finds what a crash left.
//! 5. `cache` reads bytes of objects; `file` and `env` are the files as [`varve_env`] wants them.
//!
//! Invariants:
//! - No name of an object is used twice, except for the notice of the owner, which decides nothing.
//! - One process changes a store at a time. It knows that it still owns the store when the next place of the journal is
//!   its own.
//! - What is synced is durable when the call returns, also across a takeover.

mod aws;
mod blocks;
mod cache;
mod checkpoint;
mod cloud;
mod collect;
mod env;
mod extents;
mod file;
mod memory;
mod node;
mod objects;
mod observed;
mod options;
mod owner;
mod record;
mod replay;
mod requests;
mod shared;
mod store;
mod tree;
mod uri;

pub use cache::CacheCounts;
pub use collect::{Collected, Unneeded};
pub use env::{RemoteEnv, SharedLock, format};
pub use memory::{Fate, MemoryObjects, Request};
pub use objects::{Created, LIST_MAX, ObjectInfo, Objects, Retry, is_transient, transient};
pub use options::{CacheOptions, Remote, StoreOptions};
pub use record::{Owner, describe_object};
pub use requests::RequestCounts;
pub use store::StorageCounts;
pub use uri::{Key, Location, LocationOptions, UriError};
