//! The control socket in the store of a mount, on which clients ask the daemon.
//!
//! ```text
//! client: {"upgrade": {"binary": PATH}} LF  -->  daemon
//! client: {"views": ...} LF                 -->  daemon     a request about snapshots, transactions or clones
//! client: "redesign" LF                     -->  daemon
//! client: "server" LF                       -->  daemon     of a store that is served
//! client: "end" LF                          -->  daemon
//! client <--  {"ready": ...} LF  or  {"failed": ...} LF      upgrade: from the daemon, or from its successor
//! client <--  {"done": ...} LF   or  {"failed": ...} LF      views, redesign, server; streams: see `transfer`
//! client <--  {"at": ...} LF                                 before that, if the request asks for progress; the client confirms each by LF
//! client <--  {"done": null} LF, then the same or {"failed": ...} LF      end: at once, and when the daemon has ended
//! ```
//!
//! [`request`] and [`report`] are the messages; [`client`] is the client's side, [`server`] the daemon's.

pub(crate) mod client;
mod report;
mod request;
pub(crate) mod server;

pub use report::Ready;
pub(crate) use report::{Report, answer};
pub use request::{CloneRequest, SendRequest, ViewRequest};
pub(crate) use request::{Question, Request};
pub(crate) use server::Answers;
