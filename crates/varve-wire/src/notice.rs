//! What a server tells a client without being asked.

use serde::{Deserialize, Serialize};

/// A notice. The client does what it says and acknowledges its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// What the client has cached of these objects is about to change: drop it.
    Recall(Vec<Cached>),
    /// Everything that the client has cached may have changed: drop it.
    RecallAll,
    /// The server asks whether the client is still there.
    Ping,
}

/// Something that a client may have cached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cached {
    /// The attributes and bytes of an inode, or the listing of a directory.
    Inode(u64),
    /// What a name in a directory stands for.
    Name(u64, Vec<u8>),
}
