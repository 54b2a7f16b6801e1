//! The messages on the socket for dictionaries, as bytes. docs/kv-protocol.md describes them for authors of clients.
//!
//! ```text
//! message:  | length u32 of what follows | body |
//! request:  | transaction u64, 0: none | operation u8 | fields |
//! response: | status u8: 0 done, else a failure | fields, or the failure's text |
//! ```
//!
//! Little-endian. A field of bytes has its length before it, as a u32. No message is longer than [`MESSAGE_BYTES_MAX`], and no reader
//! allocates memory for one that claims to be. The fuzz target `kv_message` compiles this file by itself.

/// The longest body, in bytes: room for a key and a value of the largest size.
pub const MESSAGE_BYTES_MAX: usize = 2 << 20;
/// The most changes of one request.
pub const CHANGES_MAX: u32 = 100_000;

/// Bytes of the transaction with which a request begins.
pub const TRANSACTION_BYTES: usize = 8;

/// Memory that a pair takes while it is changed, besides its bytes.
const PAIR_MEMORY_BYTES: usize = 256;

/// An end of a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// There is none.
    Open,
    /// This key is within.
    Included(Vec<u8>),
    /// This key is not.
    Excluded(Vec<u8>),
}

/// A request of a client. It names a dictionary by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Create an empty dictionary.
    Create(Vec<u8>),
    /// Drop a dictionary with all its pairs.
    Drop(Vec<u8>),
    /// List the names of the dictionaries.
    List,
    /// Return the value of a key.
    Get {
        /// The dictionary.
        name: Vec<u8>,
        /// The key.
        key: Vec<u8>,
    },
    /// Make all changes or none: each key gets its new value, or is removed if it has none.
    Change {
        /// The dictionary.
        name: Vec<u8>,
        /// At most [`CHANGES_MAX`].
        changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    },
    /// Return the pairs of a range, as many as fit into a message.
    Scan {
        /// The dictionary.
        name: Vec<u8>,
        /// Where the range begins.
        start: End,
        /// Where it ends.
        end: End,
        /// Largest key first.
        reverse: bool,
    },
    /// Make all earlier changes durable.
    Sync,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Failure {
    /// There is no such dictionary.
    NotFound = 1,
    /// A dictionary has that name already.
    Exists = 2,
    /// The request makes no sense.
    Invalid = 3,
    /// The store is mounted read-only.
    ReadOnly = 4,
    /// There is no room.
    NoSpace = 5,
    /// The storage failed, or is damaged.
    Storage = 6,
    /// There is no such transaction, or it has ended.
    NoTransaction = 7,
    /// Transactions hold locks on the pairs, and did not end in time.
    Locked = 8,
    /// The transaction was a deadlock victim: it has lost its locks and can only be aborted.
    GaveWay = 9,
}

impl Failure {
    const ALL: [Failure; 9] = [
        Failure::NotFound,
        Failure::Exists,
        Failure::Invalid,
        Failure::ReadOnly,
        Failure::NoSpace,
        Failure::Storage,
        Failure::NoTransaction,
        Failure::Locked,
        Failure::GaveWay,
    ];
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The request is done.
    Done,
    /// The names of dictionaries.
    Names(Vec<Vec<u8>>),
    /// The value, if the key has one.
    Value(Option<Vec<u8>>),
    /// Pairs, and whether there are more behind them.
    Pairs(Vec<(Vec<u8>, Vec<u8>)>, bool),
    /// The request failed, and why.
    Failed(Failure, String),
}

const CREATE: u8 = 1;
const DROP: u8 = 2;
const LIST: u8 = 3;
const GET: u8 = 4;
const CHANGE: u8 = 5;
const SCAN: u8 = 6;
const SYNC: u8 = 7;

/// Answers begin with 0 and one of these.
const DONE: u8 = 1;
const NAMES: u8 = 2;
const VALUE: u8 = 3;
const PAIRS: u8 = 4;

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_some(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.push(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put_bytes(out, bytes);
    }
}

fn put_end(out: &mut Vec<u8>, end: &End) {
    match end {
        End::Open => out.push(0),
        End::Included(key) => {
            out.push(1);
            put_bytes(out, key);
        }
        End::Excluded(key) => {
            out.push(2);
            put_bytes(out, key);
        }
    }
}

/// Reads the fields of a body. Its errors tell the author of the message what is wrong.
struct Parts<'a>(&'a [u8]);

type Read<T> = Result<T, &'static str>;

impl Parts<'_> {
    fn take(&mut self, len: usize) -> Read<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("it ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    fn flag(&mut self) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag that is neither 0 nor 1"),
        }
    }

    fn u32(&mut self) -> Read<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn u64(&mut self) -> Read<u64> {
        let (low, high) = (self.u32()?, self.u32()?);
        Ok(u64::from(high) << 32 | u64::from(low))
    }

    fn bytes(&mut self) -> Read<Vec<u8>> {
        let len = self.u32()?;
        Ok(self.take(len as usize)?.to_vec())
    }

    fn some(&mut self) -> Read<Option<Vec<u8>>> {
        if self.flag()? { self.bytes().map(Some) } else { Ok(None) }
    }

    fn end_of_range(&mut self) -> Read<End> {
        match self.u8()? {
            0 => Ok(End::Open),
            1 => Ok(End::Included(self.bytes()?)),
            2 => Ok(End::Excluded(self.bytes()?)),
            _ => Err("an end of a range that is none"),
        }
    }

    fn list<T>(&mut self, max: u32, mut one: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let count = self.u32()?;
        if count > max {
            return Err("a list that is too long");
        }
        (0..count).map(|_| one(self)).collect()
    }

    fn nothing_left(&self) -> Read<()> {
        if self.0.is_empty() { Ok(()) } else { Err("bytes after its end") }
    }
}

/// The transaction, or 0, of a request that begins with `body`.
pub fn transaction_of(body: &[u8]) -> u64 {
    Parts(body).u64().unwrap_or(0)
}

/// Bytes of memory that it takes at most, about, to do what is asked for in `body`: of a change each pair takes some beside its own.
pub fn memory_bytes(body: &[u8]) -> usize {
    let mut parts = Parts(body);
    let mut count = || {
        parts.u64()?;
        if parts.u8()? != CHANGE {
            return Ok::<u32, &str>(0);
        }
        parts.bytes()?;
        parts.u32()
    };
    let pairs = count().unwrap_or(0).min(CHANGES_MAX) as usize;
    2 * body.len() + pairs.min(body.len()) * PAIR_MEMORY_BYTES
}

impl Request {
    /// Whether the request changes dictionaries.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self, Request::Create(_) | Request::Drop(_) | Request::Change { .. })
    }

    /// The body, for the transaction of this number, or 0 for none.
    pub fn encode(&self, transaction: u64) -> Vec<u8> {
        let mut out = transaction.to_le_bytes().to_vec();
        match self {
            Request::Create(name) => {
                out.push(CREATE);
                put_bytes(&mut out, name);
            }
            Request::Drop(name) => {
                out.push(DROP);
                put_bytes(&mut out, name);
            }
            Request::List => out.push(LIST),
            Request::Get { name, key } => {
                out.push(GET);
                put_bytes(&mut out, name);
                put_bytes(&mut out, key);
            }
            Request::Change { name, changes } => {
                out.push(CHANGE);
                put_bytes(&mut out, name);
                out.extend_from_slice(&(changes.len() as u32).to_le_bytes());
                for (key, value) in changes {
                    put_bytes(&mut out, key);
                    put_some(&mut out, value.as_deref());
                }
            }
            Request::Scan { name, start, end, reverse } => {
                out.push(SCAN);
                put_bytes(&mut out, name);
                put_end(&mut out, start);
                put_end(&mut out, end);
                out.push(u8::from(*reverse));
            }
            Request::Sync => out.push(SYNC),
        }
        out
    }

    /// Reads a body: the transaction, or 0, and what is asked for; the reason, if it is no request.
    pub fn decode(body: &[u8]) -> Read<(u64, Request)> {
        let mut parts = Parts(body);
        let transaction = parts.u64()?;
        let request = match parts.u8()? {
            CREATE => Request::Create(parts.bytes()?),
            DROP => Request::Drop(parts.bytes()?),
            LIST => Request::List,
            GET => Request::Get { name: parts.bytes()?, key: parts.bytes()? },
            CHANGE => Request::Change {
                name: parts.bytes()?,
                changes: parts.list(CHANGES_MAX, |parts| Ok((parts.bytes()?, parts.some()?)))?,
            },
            SCAN => Request::Scan {
                name: parts.bytes()?,
                start: parts.end_of_range()?,
                end: parts.end_of_range()?,
                reverse: parts.flag()?,
            },
            SYNC => Request::Sync,
            _ => return Err("an unknown operation"),
        };
        parts.nothing_left()?;
        Ok((transaction, request))
    }
}

impl Response {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Response::Failed(failure, text) => {
                out.push(*failure as u8);
                put_bytes(&mut out, text.as_bytes());
            }
            Response::Done => out.extend_from_slice(&[0, DONE]),
            Response::Names(names) => {
                out.extend_from_slice(&[0, NAMES]);
                out.extend_from_slice(&(names.len() as u32).to_le_bytes());
                names.iter().for_each(|name| put_bytes(&mut out, name));
            }
            Response::Value(value) => {
                out.extend_from_slice(&[0, VALUE]);
                put_some(&mut out, value.as_deref());
            }
            Response::Pairs(pairs, more) => {
                out.extend_from_slice(&[0, PAIRS, u8::from(*more)]);
                out.extend_from_slice(&(pairs.len() as u32).to_le_bytes());
                for (key, value) in pairs {
                    put_bytes(&mut out, key);
                    put_bytes(&mut out, value);
                }
            }
        }
        out
    }

    /// Reads a body; the reason, if it is no response.
    pub fn decode(body: &[u8]) -> Read<Response> {
        let mut parts = Parts(body);
        let status = parts.u8()?;
        if status != 0 {
            let known = Failure::ALL.into_iter().find(|failure| *failure as u8 == status);
            let text = String::from_utf8(parts.bytes()?).map_err(|_| "a text that is not UTF-8")?;
            parts.nothing_left()?;
            return Ok(Response::Failed(known.ok_or("an unknown failure")?, text));
        }
        let response = match parts.u8()? {
            DONE => Response::Done,
            NAMES => Response::Names(parts.list(u32::MAX, Parts::bytes)?),
            VALUE => Response::Value(parts.some()?),
            PAIRS => {
                let more = parts.flag()?;
                Response::Pairs(
                    parts.list(u32::MAX, |parts| Ok((parts.bytes()?, parts.bytes()?)))?,
                    more,
                )
            }
            _ => return Err("an unknown answer"),
        };
        parts.nothing_left()?;
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_takes_is_known_before_it_is_taken_apart() {
        let changes = (0..1000_u32).map(|n| (n.to_be_bytes().to_vec(), None)).collect();
        let body = Request::Change { name: b"tags".to_vec(), changes }.encode(7);
        assert_eq!(memory_bytes(&body), 2 * body.len() + 256_000);
        let get = Request::Get { name: b"tags".to_vec(), key: b"key".to_vec() }.encode(0);
        assert_eq!(memory_bytes(&get), 2 * get.len());
        for len in 0..30 {
            assert!(memory_bytes(&body[..len]) <= 2 * len + 256 * len);
        }
    }
}
