//! Frames: what precedes the body of every message.
//!
//! ```text
//! offset  bytes  field
//!      0      4  length of all that follows
//!      4      1  version of the protocol
//!      5      1  kind: 1 hello, 2 welcome, 3 refused, 4 request, 5 answer, 6 notice, 7 acknowledgement,
//!                8 inquiry, 9 report
//!      6      2  features that the sender uses in this message
//!      8      4  epoch of the server's state: the one that the client knows, or that the server has
//!     12      4  slot of the request
//!     16      8  number of the request in its slot, or of the notice
//!     24      4  length of the body
//!     28         the body
//!                data: the rest
//! ```
//!
//! Integers are little-endian.

use crate::{BODY_BYTES_MAX, DATA_BYTES_MAX, VERSION};

/// The bytes of a header, with the length before it.
pub const HEADER_BYTES: usize = 28;
/// The most bytes of a frame.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX + DATA_BYTES_MAX;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first message of a client on a connection.
    Hello = 1,
    /// The server lets the client in.
    Welcome = 2,
    /// The server does not let the client in.
    Refused = 3,
    /// A call.
    Request = 4,
    /// The result of a call.
    Answer = 5,
    /// What a client has cached may change.
    Notice = 6,
    /// The client has dropped it.
    Acknowledgement = 7,
    /// Asks what the server has and does; the only message of a client on a connection.
    Inquiry = 8,
    /// What the server has and does: without a body, JSON is the data.
    Report = 9,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        let all = [
            Kind::Hello,
            Kind::Welcome,
            Kind::Refused,
            Kind::Request,
            Kind::Answer,
            Kind::Notice,
            Kind::Acknowledgement,
            Kind::Inquiry,
            Kind::Report,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// What all messages have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Features that the sender uses in this message; none are defined yet.
    pub features: u16,
    /// The epoch of the server's state.
    pub epoch: u32,
    /// The slot of a request or its answer.
    pub slot: u32,
    /// The number of a request in its slot, or of a notice.
    pub number: u64,
}

impl Header {
    /// A header without features, slot and number.
    pub fn new(kind: Kind, epoch: u32) -> Header {
        Header { kind, features: 0, epoch, slot: 0, number: 0 }
    }
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length does not fit a frame.
    #[error("a frame of {0} bytes: between {min} and {max} are possible", min = HEADER_BYTES - 4, max = FRAME_BYTES_MAX - 4)]
    Length(u32),
    /// Another version.
    #[error("version {0} of the protocol, this program speaks {VERSION}")]
    Version(u8),
    /// An unknown kind.
    #[error("kind {0} of messages is unknown")]
    Kind(u8),
    /// The body is longer than its frame or than bodies may be.
    #[error("a body of {0} bytes does not fit its frame")]
    BodyLength(u32),
    /// The body does not decode.
    #[error("the body cannot be decoded: {0}")]
    Body(String),
    /// Bytes after the body.
    #[error("{0} superfluous bytes after the body")]
    Superfluous(usize),
    /// The message makes no sense at this point.
    #[error("unexpected message: {0}")]
    Unexpected(&'static str),
}

/// A frame within the bytes that were received.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its header.
    pub header: Header,
    /// Its body.
    pub body: &'a [u8],
    /// Its data.
    pub data: &'a [u8],
    /// How many bytes it takes.
    pub bytes: usize,
}

/// Returns the first frame in `bytes`; `None` if it is not complete yet.
pub fn first(bytes: &[u8]) -> Result<Option<Frame<'_>>, FrameError> {
    let Some(length) = expected_bytes(bytes)? else { return Ok(None) };
    let Some(frame) = bytes.get(..length) else { return Ok(None) };
    let [_, _, _, _, version, kind, ..] = *frame else { return Ok(None) };
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    let kind = Kind::of(kind).ok_or(FrameError::Kind(kind))?;
    let body_bytes = number32(frame, 24);
    let rest = &frame[HEADER_BYTES..];
    let fits = body_bytes as usize <= rest.len().min(BODY_BYTES_MAX);
    if !fits || rest.len() - body_bytes as usize > DATA_BYTES_MAX {
        return Err(FrameError::BodyLength(body_bytes));
    }
    let (body, data) = rest.split_at(body_bytes as usize);
    let header = Header {
        kind,
        features: u16::from_le_bytes([frame[6], frame[7]]),
        epoch: number32(frame, 8),
        slot: number32(frame, 12),
        number: u64::from(number32(frame, 16)) | u64::from(number32(frame, 20)) << 32,
    };
    Ok(Some(Frame { header, body, data, bytes: length }))
}

/// Returns how many bytes the first frame takes, as soon as its length is there.
pub fn expected_bytes(bytes: &[u8]) -> Result<Option<usize>, FrameError> {
    if bytes.len() < 4 {
        return Ok(None);
    }
    let length = number32(bytes, 0);
    let all = length as usize + 4;
    if (HEADER_BYTES..=FRAME_BYTES_MAX).contains(&all) {
        Ok(Some(all))
    } else {
        Err(FrameError::Length(length))
    }
}

fn number32(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

/// Makes a frame one of another version of the protocol. Headers are the same in all versions.
pub fn set_version(frame: &mut [u8], version: u8) {
    if let Some(at) = frame.get_mut(4) {
        *at = version;
    }
}

/// Appends a header, whose lengths [`finish`] fills in. Returns where it begins.
pub(crate) fn begin(out: &mut Vec<u8>, header: Header) -> usize {
    let begin = out.len();
    let Header { kind, features, epoch, slot, number } = header;
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[VERSION, kind as u8]);
    out.extend_from_slice(&features.to_le_bytes());
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&slot.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    begin
}

/// Fills in the lengths of the frame that begins at `begin`.
pub(crate) fn finish(out: &mut [u8], begin: usize, body_bytes: usize) {
    let length = u32::try_from(out.len() - begin - 4).unwrap_or(u32::MAX);
    let body_bytes = u32::try_from(body_bytes).unwrap_or(u32::MAX);
    debug_assert!(length as usize + 4 <= FRAME_BYTES_MAX, "a frame of {length} bytes");
    out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
    out[begin + 24..begin + 28].copy_from_slice(&body_bytes.to_le_bytes());
}
