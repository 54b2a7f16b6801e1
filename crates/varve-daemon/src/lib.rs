//! The daemon of a mount, and how it is asked for something.
//!
//! A program that embeds Varve needs none of it: see the crate `varve`. The command line does: each of its subcommands is a thin
//! wrapper over one of these modules.
//!
//! The daemon's side:
//!
//! - [`mount`]: serves a store on a directory, in this process or in the background, and takes the mount away.
//! - `service`: the mounts of snapshots and transactions within it, and what is asked about them.
//! - `control`: the socket on which the daemon is asked. [`kv`]: the one for dictionaries.
//! - [`upgrade`]: another program for a mount in use.
//! - [`serve`]: serves a store to mounts on other machines, with its snapshots and transactions (`served_views`), as a
//!   service (`ready_notice`) that says what it does (`served_status`, `metrics`; `served_store` on this machine).
//! - [`nfs`]: serves a store over NFS. [`logging`]: where messages go.
//!
//! The clients' side; where no daemon serves the store, they open it and do the same themselves:
//!
//! - [`requests`]: snapshots, transactions and clones. [`transfer`]: snapshots sent and received. [`redesign`]: another design for
//!   all tables.
//! - [`transaction`]: programs in a transaction. [`clone`](mod@clone): copies by their paths. [`kv::Client`]: dictionaries.
//! - [`status`], [`stats`], [`trees`]: what a mount tells of itself, by attributes of its files.
//! - [`holder`]: which process has a store open.
//!
//! Failures are [`varve::Error`].
#![allow(clippy::disallowed_methods, reason = "the daemon talks to the machine itself")]

pub mod clone;
mod control;
mod error;
pub mod holder;
pub mod kv;
pub mod logging;
mod metrics;
pub mod mount;
mod mount_source;
mod mount_table;
pub mod nfs;
mod ready_notice;
pub mod redesign;
pub mod requests;
pub mod serve;
mod served_status;
mod served_store;
mod served_views;
mod server_address;
mod service;
mod signals;
mod slots;
mod socket;
pub mod stats;
pub mod status;
mod target;
pub mod transaction;
pub mod transfer;
pub mod trees;
pub mod upgrade;
