//! Serves any file system ([`varve_vfs::Vfs`]) by NFS version 3 (RFC 1813) and the MOUNT protocol, over TCP.
//!
//! 1. [`Server::start`] takes a listener and the directories that clients may mount ([`Export`]). `server` reads
//!    calls from connections, and workers answer them. `rpc` and `xdr` decode and encode the bytes.
//! 2. `mount` gives clients the handle of a directory. A [`handle`] names an inode for as long as the inode
//!    exists.
//! 3. `procedures` serves the calls. It finds the inode of a handle (`looked_up`), checks what the caller may do
//!    (`service`), and keeps files open that clients read and write (`opened`). It makes every change durable before
//!    the answer, as the protocol requires, unless the export says `async`. A call that arrives a second time is not
//!    executed again (`replies`).
//!
//! File locks (NLM) are not served: clients mount with `nolock`. Clients cannot enter snapshots and transactions,
//! which are separate mounts on a local mount.
//!
//! Source: Sinnamohideen, thesis, 5.11 (an NFS head-end over the metadata service). Departure: handles of one file
//! system need no translation, because inode ids are never reused.
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
