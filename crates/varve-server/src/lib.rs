//! A metadata server: sockets and threads around any [`varve_vfs::Vfs`].
//!
//! The way of a request:
//!
//! 1. A thread of `reactor` reads frames from a connection and decodes them.
//! 2. `session` finds the client's session and says whether the request is new ([`varve_meta::Slots`]). A request
//!    that was executed before gets the same answer again.
//! 3. `calls` makes the call. If it changes something, `changes` first has everybody drop what they have cached of it.
//! 4. The answer goes out with all others of the same read. A call that has to wait (for other clients, for the
//!    storage, for locks) goes to a thread of `workers` first, which sends the answer itself.
//!
//! Views of the store and requests about it as a whole come from a [`Host`].
//!
//! Invariants: a client can make the server hold only so much (limits stand where they are used), and what it does
//! leaves threads, connections and sessions to others ([`workers`], [`shares`]). A message that
//! cannot be decoded ends its connection and nothing else. A client that is away keeps its open files until its
//! session ends ([`Options::session`]).
//!
//! Source: CLUSTER.md, section 5.
#![allow(clippy::disallowed_methods, reason = "a server talks to the machine itself")]

mod admission;
mod calls;
mod changes;
mod clock;
mod connection;
mod host;
mod journal;
mod meters;
mod nodes;
mod reactor;
mod server;
mod session;
mod shares;
mod status;
mod workers;

pub use host::{Asked, Host, View};
pub use meters::Requests;
pub use server::{Options, Server};
pub use status::{Client, Grace, LeaseStatus, Status};
pub use varve_meta::Policy;
