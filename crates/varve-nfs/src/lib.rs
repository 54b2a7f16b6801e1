//! Any file system ([`varve_vfs::Vfs`]) over NFS version 3 (RFC 1813), with the MOUNT protocol, over TCP.
//!
//! 1. [`Server::start`] takes a listener and the directories that may be mounted ([`Export`]). `server` reads calls off connections and has
//!    workers answer them; `rpc` and `xdr` are their bytes.
//! 2. `mount` gives clients the handle of a directory. A [handle](handle) names an inode for as long as it is there.
//! 3. `procedures` does what calls ask. It finds the inode of a handle (`looked_up`), checks what the caller may do (`service`), has files open that
//!    are read and written (`opened`), and makes every change durable before it answers, as the protocol asks, unless the export says `async`.
//!    Calls that come a second time are not done again (`replies`).
//!
//! Locks (NLM) are not served: clients mount with `nolock`. Snapshots and transactions, which are mounts of their own on a
//! local mount, cannot be entered.
//!
//! Source: Sinnamohideen, thesis, 5.11 (an NFS head-end over the metadata service). Departure: handles of one file system need no
//! translation, since inode ids are never given again.
#![allow(clippy::disallowed_methods, reason = "a front end talks to the machine itself")]

mod export;
mod handle;
mod looked_up;
mod mount;
mod opened;
mod procedures;
mod replies;
mod rpc;
mod server;
mod service;
mod status;
mod xdr;

pub use export::{Export, ExportError};
pub use server::{Options, Server, StartError};
