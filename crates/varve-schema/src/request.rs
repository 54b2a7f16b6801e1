//! Rows about clients of a server: which requests were done, and which clients there are.
//!
//! ```text
//! keys:     | 1 u8 | client u128 |              a client that has a session
//!           | 2 u8 | client u128 | slot u32 |   the last request done in a slot of a client; both big-endian
//!
//! client:   | version u8 |
//! request:  | version u8 | 1 u8 | number varint |                                             gave nothing
//!           | version u8 | 2 u8 | number varint | inode varint |                              made or found that inode
//!           | version u8 | 3 u8 | number varint | offset varint | bytes varint | set-id u8 |  wrote that
//! ```
//!
//! `set-id` says what a write did about set-id bits: 0 nothing, 1 all are cleared, 2 all but set-group-id.

use bytes::Bytes;
use varve_types::{ClientId, InodeId};

use crate::{DecodeError, ROW_VERSION, Reader, put_varint};

/// Name of the key space for these rows. A store has it from the day on which it is first served.
pub const REQUESTS: &str = "requests";

const CLIENT: u8 = 1;
const REQUEST: u8 = 2;
const CLIENT_BYTES: usize = 16;

const NOTHING: u8 = 1;
const INODE: u8 = 2;
const WRITTEN: u8 = 3;
/// The largest value of the field `set-id`.
const SET_ID_MAX: u8 = 2;

/// The key of a row of [`REQUESTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestsKey {
    /// Of a client.
    Client(ClientId),
    /// Of a slot of a client.
    Slot(ClientId, u32),
}

impl RequestsKey {
    /// Returns the bytes.
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            RequestsKey::Client(client) => prefixed(CLIENT, client),
            RequestsKey::Slot(client, slot) => {
                let mut out = prefixed(REQUEST, client);
                out.extend_from_slice(&slot.to_be_bytes());
                out
            }
        }
    }

    /// Returns the key with these bytes, if they are one.
    pub fn from_bytes(bytes: &[u8]) -> Option<RequestsKey> {
        let (kind, rest) = bytes.split_first()?;
        let (client, slot) = rest.split_first_chunk::<CLIENT_BYTES>()?;
        let client = ClientId::new(u128::from_be_bytes(*client));
        match (*kind, slot) {
            (CLIENT, []) => Some(RequestsKey::Client(client)),
            (REQUEST, slot) => {
                Some(RequestsKey::Slot(client, u32::from_be_bytes(slot.try_into().ok()?)))
            }
            _ => None,
        }
    }

    /// Returns the prefix of the keys of all clients.
    pub fn clients_prefix() -> [u8; 1] {
        [CLIENT]
    }

    /// Returns the prefix of the keys of all slots of `client`.
    pub fn slots_prefix(client: ClientId) -> Vec<u8> {
        prefixed(REQUEST, client)
    }
}

fn prefixed(kind: u8, client: ClientId) -> Vec<u8> {
    [&[kind][..], &client.get().to_be_bytes()].concat()
}

/// The row of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRow;

impl ClientRow {
    /// Returns the row's value.
    pub fn encode(self) -> Vec<u8> {
        vec![ROW_VERSION]
    }

    /// Decodes a row's value.
    pub fn decode(bytes: &Bytes) -> Result<ClientRow, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        reader.end()?;
        Ok(ClientRow)
    }
}

/// The row of a slot: the last request that was done in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRow {
    /// The number of the request. Those with smaller numbers were done before.
    pub number: u64,
    /// What it gave.
    pub result: RequestResult,
}

/// What a request gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    /// Nothing but that it was done.
    Nothing,
    /// The inode that it made or found.
    Inode(InodeId),
    /// What it wrote.
    Written {
        /// The offset of the first byte.
        offset: u64,
        /// How many bytes were written.
        bytes: u64,
        /// What it did about set-id bits; see the module's comment.
        set_id: u8,
    },
}

impl RequestRow {
    /// Returns the row's value.
    pub fn encode(self) -> Vec<u8> {
        let kind = match self.result {
            RequestResult::Nothing => NOTHING,
            RequestResult::Inode(_) => INODE,
            RequestResult::Written { .. } => WRITTEN,
        };
        let mut out = Vec::with_capacity(24);
        out.extend_from_slice(&[ROW_VERSION, kind]);
        put_varint(&mut out, self.number);
        match self.result {
            RequestResult::Nothing => {}
            RequestResult::Inode(ino) => put_varint(&mut out, ino.get()),
            RequestResult::Written { offset, bytes, set_id } => {
                put_varint(&mut out, offset);
                put_varint(&mut out, bytes);
                out.push(set_id);
            }
        }
        out
    }

    /// Decodes a row's value.
    pub fn decode(bytes: &Bytes) -> Result<RequestRow, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let kind = reader.u8()?;
        let number = reader.varint()?;
        let result = match kind {
            NOTHING => RequestResult::Nothing,
            INODE => RequestResult::Inode(InodeId::new(reader.varint()?)),
            WRITTEN => {
                let (offset, bytes, set_id) = (reader.varint()?, reader.varint()?, reader.u8()?);
                if set_id > SET_ID_MAX {
                    return Err(reader.error("an unknown state of set-id bits"));
                }
                RequestResult::Written { offset, bytes, set_id }
            }
            _ => return Err(reader.error("an unknown kind of result")),
        };
        reader.end()?;
        Ok(RequestRow { number, result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_and_sort_by_client_and_slot() {
        let clients = [0, 1, 1 << 64, u128::MAX].map(ClientId::new);
        let mut keys: Vec<RequestsKey> = clients.map(RequestsKey::Client).to_vec();
        for client in clients {
            keys.extend([0, 1, 256, u32::MAX].map(|slot| RequestsKey::Slot(client, slot)));
        }
        for pair in keys.windows(2) {
            assert!(pair[0].to_bytes() < pair[1].to_bytes());
        }
        for key in keys {
            let bytes = key.to_bytes();
            assert_eq!(RequestsKey::from_bytes(&bytes), Some(key));
            assert_eq!(RequestsKey::from_bytes(&bytes[..bytes.len() - 1]), None);
            assert_eq!(RequestsKey::from_bytes(&[&bytes[..], &[0]].concat()), None);
            match key {
                RequestsKey::Client(_) => {
                    assert!(bytes.starts_with(&RequestsKey::clients_prefix()))
                }
                RequestsKey::Slot(client, _) => {
                    assert!(bytes.starts_with(&RequestsKey::slots_prefix(client)))
                }
            }
        }
        assert_eq!(RequestsKey::from_bytes(&[3; 17]), None);
        assert_eq!(RequestsKey::from_bytes(&[]), None);
    }
}
