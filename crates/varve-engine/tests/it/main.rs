//! The engine against a `BTreeMap`, against crashes, damage, full disks and failing syncs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod background;
mod branch_crash;
mod branches;
mod column;
mod common;
mod counters;
mod crash;
mod damage;
mod designs;
mod external;
mod faults;
mod histories;
mod ingest;
mod lock_sizes;
mod log_room;
mod migration;
mod oracle;
mod ordered;
mod pace;
mod reads;
mod redesign;
mod repair;
mod retune;
mod room;
mod row_work;
mod segments;
mod single_faults;
mod soak;
mod stitching;
mod sublevel_map;
mod table_sizes;
mod threaded;
mod threads;
mod tools;
