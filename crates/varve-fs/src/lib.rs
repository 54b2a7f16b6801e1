//! The file system on the engine: names, attributes and small files as rows, large files beside them.
//!
//! [`format()`] makes a store, [`VarveFs::open`] opens it, and [`varve_vfs::Vfs`] is how it is used. The way
//! of a call:
//!
//! 1. `vfs` takes it and hands it to the module of its kind: `namespace` (names), `attrs`, `open`
//!    (handles), `data` (bytes) and `xattr`. Copies that are made later are in `clones`.
//! 2. Operations on names decide in [`varve_namespace`], under locks that [`locked`] takes for them. Other modules find the inode
//!    they need by its id through the [session](varve_session), and lock its row ([`held`]).
//! 3. The decision becomes one batch (`rows`, `usage`). What is in memory (the session's inode table) follows before the locks are
//!    dropped.
//!
//! Invariants, which [`fsck`] checks: every entry's inode exists, exactly once; a directory knows its
//! parent, the place of its name, its counts and what lies below it; an inode's link count is the number of its names;
//! every object file has a row that claims it or a pending row; pairs of [`dictionaries`] have a name; a row never
//! claims bytes that are not durable before it.
//!
//! Source: TableFS, thesis sections 4.2.1 to 4.2.6.

mod attrs;
mod begin_large;
mod clones;
mod commit;
mod data;
mod descriptors;
pub mod dictionaries;
mod dir_rows;
pub mod dump;
mod engine;
mod engine_alone;
mod epoch;
mod error;
mod files;
mod flags;
mod format;
mod fs;
pub mod fsck;
mod handover;
mod held;
mod ids;
mod keyspaces;
mod locked;
mod locks;
mod lost;
mod main_file;
mod mapped;
mod namespace;
mod numbered;
mod objects;
mod open;
mod opening;
mod options;
mod overlay;
mod preimages;
mod reaper;
mod recover;
mod redesign;
mod requests;
mod rollback;
mod rows;
mod snapshots;
mod spill;
mod status;
mod store_lock;
pub mod stream;
pub mod superblock;
mod synthetic;
mod transactions;
mod usage;
mod vfs;
mod views;
mod xattr;

pub use clones::Original;
pub use commit::{CommitError, Committed};
pub use dictionaries::Dictionaries;
pub use engine::EngineKind;
pub use engine_alone::open_engine;
pub use format::format;
pub use fs::VarveFs;
pub use handover::HandedOver;

pub use options::{Atime, FormatOptions, MountOptions, NewFiles};
pub use overlay::{OverlayReport, inspect_overlay};
pub use preimages::inspect_mark;
pub use rollback::{ROLL_BACK_PHASES, RollBackError};
pub use snapshots::{ChangeKind, Diff, PathChange};
pub use store_lock::holder;
pub use superblock::Superblock;
pub use synthetic::{controlled, is_fleeting, is_place as is_view_place};
pub use transactions::{Isolation, OnConflict, Transaction, TransactionLocks, TransactionOptions};
pub use views::{ViewKind, ViewName};
