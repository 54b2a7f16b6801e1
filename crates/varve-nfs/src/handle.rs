//! File handles.
//!
//! ```text
//! offset  bytes  field
//!      0      1  version: 1
//!      1      3  0
//!      4      8  the file system
//!     12      8  inode id of the exported directory
//!     20      8  inode id
//!     28      8  inode id of the directory in which it was found, 0 if that is not known
//! ```
//!
//! Inode ids are never reused, so a handle is valid for as long as the inode exists, over restarts of the server and
//! renames. The directory is only the first place where the server looks for an inode that is not looked up. Integers
//! are little-endian.

use varve_types::InodeId;

/// The most bytes of a handle in NFS version 3.
pub(crate) const HANDLE_BYTES_MAX: usize = 64;

const VERSION: u8 = 1;
const BYTES: usize = 36;

/// A decoded handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHandle {
    pub(crate) file_system: u64,
    pub(crate) export: InodeId,
    pub(crate) ino: InodeId,
    pub(crate) parent: Option<InodeId>,
}

impl FileHandle {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = VERSION;
        let parent = self.parent.map_or(0, InodeId::get);
        let numbers = [self.file_system, self.export.get(), self.ino.get(), parent];
        for (place, number) in bytes[4..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes a handle; `None` if it is not one of this server.
    pub(crate) fn decode(bytes: &[u8]) -> Option<FileHandle> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        if bytes[..4] != [VERSION, 0, 0, 0] {
            return None;
        }
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let (ino, parent) = (number(20), number(28));
        (ino != 0).then_some(FileHandle {
            file_system: number(4),
            export: InodeId::new(number(12)),
            ino: InodeId::new(ino),
            parent: (parent != 0).then_some(InodeId::new(parent)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_stay_what_they_are() {
        let handle = FileHandle {
            file_system: 0x0102_0304_0506_0708,
            export: InodeId::ROOT,
            ino: InodeId::new(0x1234),
            parent: Some(InodeId::new(0x5678)),
        };
        let bytes = handle.encode();
        assert_eq!(
            bytes[..],
            [
                1, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0x34, 0x12, 0, 0, 0, 0,
                0, 0, 0x78, 0x56, 0, 0, 0, 0, 0, 0
            ],
            "clients keep handles over restarts"
        );
        assert_eq!(FileHandle::decode(&bytes), Some(handle));
        let alone = FileHandle { parent: None, ..handle };
        assert_eq!(FileHandle::decode(&alone.encode()), Some(alone));
        assert_eq!(FileHandle::decode(&bytes[..35]), None);
        assert_eq!(FileHandle::decode(&[0; BYTES]), None);
        assert_eq!(FileHandle::decode(&[&[2; 1], &bytes[1..]].concat()), None);
    }
}
