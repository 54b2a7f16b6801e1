//! The first exchange on a connection.

use serde::{Deserialize, Serialize};

/// The first message of a client on each of its connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello<'a> {
    /// The client: a random number that it chose when it began.
    pub client: [u64; 2],
    /// Which of the client's connections this is. Notices come on connection 0, which carries no requests.
    pub connection: u32,
    /// The features that the client knows, as bits; none are defined yet.
    pub features: u64,
    /// What the client calls itself in messages: its host and mount point.
    pub name: &'a str,
    /// The directory that the client wants as its root, as a path from the root of the file system.
    pub path: &'a [u8],
    /// The client wants to change nothing.
    pub read_only: bool,
    /// The secret that lets the client in; empty where none is needed.
    pub token: &'a [u8],
}

/// The server lets a client in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The features that both know.
    pub features: u64,
    /// The identity of the file system: the same after a restart, another for another store.
    pub file_system: [u64; 2],
    /// The number of the client's session. With the epoch in the header it tells sessions apart: in another session
    /// than before the client opens its files again.
    pub session: u32,
    /// The inode id of the client's root.
    pub root: u64,
    /// The number of slots: how many requests the client may have under way.
    pub slots: u32,
    /// How long the server waits for a client that is away before it ends its session, in milliseconds.
    pub session_ms: u32,
    /// The client may change nothing.
    pub read_only: bool,
}

/// The server does not let a client in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Whether the client may try again later: the server is about to end or to begin.
    pub is_temporary: bool,
    /// The reason, for a person.
    pub reason: String,
}

/// The only message of somebody who wants to know what the server has and does. It begins no session. The answer is a
/// [`Kind::Report`](crate::Kind::Report), or a [`Refused`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inquiry<'a> {
    /// The secret, as in a hello.
    pub token: &'a [u8],
}
