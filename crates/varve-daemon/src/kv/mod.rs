//! Dictionaries: pairs of keys and values beside the files of a store, for programs and the command line.
//!
//! 1. [`Client::open`] connects to the daemon if one serves the store, and opens the store itself otherwise.
//! 2. Either way [`answer()`] turns a [`Request`](protocol::Request) into a [`Response`](protocol::Response), so both behave the same.
//!    docs/kv-protocol.md describes the socket.
//! 3. A request may belong to a transaction: it then works on the transaction's pairs, which are committed or aborted with its files. A
//!    client that is opened by a path within a transaction's mount works in that transaction.
//!
//! Source: KVFS thesis 3.1 (files and pairs on one store).

mod answer;
mod client;
mod memory_budget;
mod message;
pub mod protocol;
mod server;

pub(crate) use answer::answer;
pub use client::Client;
pub(crate) use server::{DictionaryHost, Server, failed};
