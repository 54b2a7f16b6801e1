//! What can be locked, how, and what a request for a key, a prefix or a key space asks for.

use std::hash::Hasher;

use smallvec::SmallVec;
use varve_format::filter::filter_hash;
use varve_types::KeyspaceId;

/// What is locked, as a number; equal ones may be of different things.
pub(super) type Granule = u64;

/// Bytes of a key that name its prefix granule.
const PREFIX_BYTES: usize = 8;

/// What can be locked.
#[derive(Clone, Copy, Debug)]
enum Size {
    Space = 1,
    Prefix = 2,
    Key = 3,
}

/// A granule is known by the hash of its name: two that share one exclude each other without need, which is right.
fn granule(size: Size, space: KeyspaceId, name: &[u8]) -> Granule {
    let place = (u64::from(space.get()) << 2 | size as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    filter_hash(name) ^ place
}

/// Granules are hashes already.
#[derive(Default)]
pub(super) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// How a granule is locked, as a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mode {
    /// Something within is read.
    ReadsWithin = 1,
    /// Something within is written.
    WritesWithin = 2,
    /// All of it is read.
    Shared = 4,
    /// All of it is written.
    Exclusive = 8,
}

impl Mode {
    /// The modes of others that exclude it.
    pub(super) fn excluded(self) -> u8 {
        let (writes, shared, exclusive) =
            (Mode::WritesWithin as u8, Mode::Shared as u8, Mode::Exclusive as u8);
        match self {
            Mode::ReadsWithin => exclusive,
            Mode::WritesWithin => shared | exclusive,
            Mode::Shared => writes | exclusive,
            Mode::Exclusive => u8::MAX,
        }
    }

    /// The modes of which each grants what this one asks for.
    pub(super) fn enough(self) -> u8 {
        Mode::Exclusive as u8 | if self == Mode::Shared { Mode::Shared as u8 } else { 0 }
    }

    /// How the granules around one that is locked so are locked.
    fn around(self) -> Mode {
        match self {
            Mode::Shared | Mode::ReadsWithin => Mode::ReadsWithin,
            Mode::Exclusive | Mode::WritesWithin => Mode::WritesWithin,
        }
    }
}

/// A granule and those around it, with modes; the largest first.
pub(super) type Request = SmallVec<[(Granule, Mode); 3]>;

/// The granule of one key.
pub(super) fn key_granule(space: KeyspaceId, key: &[u8]) -> Granule {
    granule(Size::Key, space, key)
}

/// The request for one key.
pub(super) fn key_request(space: KeyspaceId, key: &[u8], mode: Mode) -> Request {
    let mut request = prefix_request(space, key, mode.around());
    request.push((key_granule(space, key), mode));
    request
}

/// The request for all keys that begin with the first 8 bytes of `prefix`, or for all keys if it is shorter.
pub(super) fn prefix_request(space: KeyspaceId, prefix: &[u8], mode: Mode) -> Request {
    match prefix.first_chunk::<PREFIX_BYTES>() {
        Some(prefix) => {
            let prefix = granule(Size::Prefix, space, prefix);
            Request::from_iter([(granule(Size::Space, space, &[]), mode.around()), (prefix, mode)])
        }
        None => space_request(space, mode),
    }
}

/// The request for all keys.
pub(super) fn space_request(space: KeyspaceId, mode: Mode) -> Request {
    Request::from_iter([(granule(Size::Space, space, &[]), mode)])
}

/// The granule that a request is for.
pub(super) fn target(request: &Request) -> Granule {
    request.last().map_or(0, |(granule, _)| *granule)
}
