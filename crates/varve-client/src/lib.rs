//! A [`varve_vfs::Vfs`] over metadata servers.
//!
//! The way of a call:
//!
//! 1. [`Client`] makes a request of the call (`calls`). It sends with each inode the place where the server found it
//!    (`nodes`).
//! 2. `transport` sends the request under a slot and a number and waits for the answer. The waiting thread reads the
//!    connection itself.
//! 3. What the answer says may be kept for as long as its lease lasts, unless a notice has recalled it meanwhile
//!    (`leases`).
//!
//! A connection that breaks is made anew, and requests without an answer are sent again under their numbers, so that
//! none is executed twice. A server that has begun anew gets the open files first (`files`). One thread reads notices
//! and has the kernel drop what they recall (`notices`).
//!
//! Source: CLUSTER.md, section 6.
#![allow(clippy::disallowed_methods, reason = "a client talks to the machine itself")]

mod calls;
mod client;
mod deadline;
mod dial;
mod files;
mod inquiry;
mod leases;
mod nodes;
mod notices;
mod silence;
mod transport;

pub use client::{Client, ConnectError, Forgetful, Options, Within};
pub use inquiry::inquire;
