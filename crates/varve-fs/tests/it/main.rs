//! Tests of the file system through its public interface.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod acl;
mod against_model;
mod bench;
mod bounds;
mod clones;
mod closing;
mod concurrent;
mod copy;
mod crash;
mod crash_points;
mod crash_threads;
mod damage;
mod data;
mod dictionaries;
mod dump;
mod engines;
mod faults;
mod findings;
mod handover;
mod interposed;
mod names;
mod overlays;
mod quota;
mod random_damage;
mod repairs;
mod sent;
mod sent_files;
mod sent_forged;
mod serial;
mod snapshots;
mod store;
mod support;
mod transactions;
mod usage;
mod views;
