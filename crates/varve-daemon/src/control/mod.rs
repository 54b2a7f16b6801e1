//! The control socket in the store of a mount: what clients ask ([`request`]) and what the daemon answers ([`report`]), both as
//! lines of JSON.
//!
//! ```text
//! client: {"upgrade": {"binary": PATH}} LF  -->  daemon
//! client: {"views": ...} LF              -->  daemon
//! client: "redesign" LF                  -->  daemon
//! client: "end" LF                       -->  daemon
//! client <--  {"ready": ...} LF  or  {"failed": ...} LF      by the daemon, or by its successor
//! client <--  {"done": ...} LF  or  {"failed": ...} LF       if it is about views or a step of a redesign; streams: `transfer`
//! client <--  {"done": null} LF, then the same or {"failed": ...} LF      at once, and when the daemon has ended: who asked for its end
//! client <--  {"at": ...} LF                                 before that, if he has asked to be told how far it is; he says LF to each
//! ```
//!
//! [`client`] asks, [`server`] hears and has the request done.

pub(crate) mod client;
mod report;
mod request;
pub(crate) mod server;

pub use report::Ready;
pub(crate) use report::{Report, answer};
pub(crate) use request::Request;
pub use request::{CloneRequest, SendRequest, ViewRequest};
