//! Dictionaries of a store, as programs and the command line reach them.
//!
//! 1. [`Client::open`] finds who can answer: the daemon, by its socket, if the store is mounted; else the store
//!    itself, which it opens.
//! 2. Either way a [`Request`](protocol::Request) goes in and a [`Response`](protocol::Response) comes out of
//!    [`answer`], so both mean the same. docs/kv-protocol.md describes the socket's side of it.
//! 3. A request may belong to a transaction: then it is done in that one's tree, and committed or dropped with its
//!    files. On a directory of a transaction's own mount that is so without being told.
//!
//! Source: KVFS thesis 3.1 (files and pairs on one store).

mod answer;
mod client;
mod memory_budget;
mod message;
pub mod protocol;
mod server;

pub use client::Client;
pub(crate) use server::Server;
