//! The adapter through the kernel: each test mounts a file system in memory and drives it with the
//! system's own calls. Without /dev/fuse or the right to mount, a test says so and passes.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "these tests drive a mounted file system as any program would"
)]

mod attributes;
mod file_locks;
mod files;
mod handover;
mod mounts;
mod objectfs;
mod oracle;
mod passthrough;
mod protocol;
mod remote;
mod remotefs;
mod support;
mod transports;
