//! Replies, taken apart.

use super::number;

/// A reply behind its head, read from the front.
pub(super) struct Reply {
    bytes: Vec<u8>,
    at: usize,
}

/// Attributes (`fattr3`), as far as they are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) kind: u32,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) owner: [u32; 2],
    pub(super) size: u64,
    pub(super) used: u64,
    pub(super) device: [u32; 2],
    pub(super) file_system: u64,
    pub(super) number: u64,
    /// Of the last access, change of the bytes, and change of attributes.
    pub(super) times: [[u32; 2]; 3],
}

impl Reply {
    pub(super) fn new(bytes: Vec<u8>) -> Reply {
        Reply { bytes, at: 0 }
    }

    pub(super) fn u32(&mut self) -> u32 {
        self.at += 4;
        number(&self.bytes, self.at - 4)
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    pub(super) fn opaque(&mut self) -> Vec<u8> {
        let len = self.u32() as usize;
        self.fixed(len)
    }

    pub(super) fn fixed(&mut self, len: usize) -> Vec<u8> {
        let begin = self.at;
        self.at += len.next_multiple_of(4);
        self.bytes[begin..begin + len].to_vec()
    }

    pub(super) fn pair(&mut self) -> [u32; 2] {
        [self.u32(), self.u32()]
    }

    pub(super) fn attributes(&mut self) -> Attributes {
        let [kind, mode, links] = [self.u32(), self.u32(), self.u32()];
        Attributes {
            kind,
            mode,
            links,
            owner: self.pair(),
            size: self.u64(),
            used: self.u64(),
            device: self.pair(),
            file_system: self.u64(),
            number: self.u64(),
            times: [self.pair(), self.pair(), self.pair()],
        }
    }

    /// Attributes that may be missing and are not.
    pub(super) fn told(&mut self) -> Attributes {
        assert_eq!(self.u32(), 1, "attributes are told");
        self.attributes()
    }

    /// Those of after a change; what they were before is never told.
    pub(super) fn after(&mut self) -> Attributes {
        assert_eq!(self.u32(), 0);
        self.told()
    }

    /// Everything was read.
    pub(super) fn end(&self) {
        assert_eq!(self.at, self.bytes.len());
    }
}
