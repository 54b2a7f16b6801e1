//! The program as its users meet it: the real binary, a real store, a real mount.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "these tests are programs on the mount: they use the machine as any program does"
)]

mod bounds;
mod cli;
mod cluster_demo;
mod conformance;
mod crowds;
mod deaths;
mod demo;
mod descriptors;
mod dump;
mod fsck;
mod full_devices;
mod harness;
mod kv;
mod lookalikes;
mod mounting;
mod nfs;
mod odd_paths;
mod output;
mod redesign;
mod semantics;
mod served;
mod server_status;
mod server_views;
mod shared;
mod two_mounts;
mod units;
mod unmounting;
mod untrusted;
mod upgrade;
