//! The results of calls.

use serde::{Deserialize, Serialize};
use varve_types::NameError;
use varve_vfs::FsError;

use crate::attr::{Attr, Entry, Place};

/// The result of a call. New results go last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The call succeeded; what it returns, if anything, is the data.
    Done,
    /// The call failed.
    Failed(Failure),
    /// A name that was found or made.
    Entry(Entry),
    /// Attributes.
    Attr(Attr),
    /// A file that was made and opened.
    Created(Entry, Opened),
    /// A file that was opened.
    Opened(Opened),
    /// What a write has done, and the attributes after it.
    Written {
        /// The offset of the first byte.
        offset: u64,
        /// How many bytes were written.
        bytes: u32,
        /// Which set-id bits were cleared: 0 none, 1 all, 2 all but set-group-id.
        set_id: u8,
    },
    /// Names of a directory: the data is a sequence of encoded [`Listed`].
    Listed {
        /// How many names there are.
        names: u32,
        /// No name follows.
        is_end: bool,
    },
    /// A number.
    Number(u64),
    /// Space: block size, blocks, free, available, files, free files, longest name.
    StatFs([u64; 7]),
    /// Bytes, files and directories.
    Usage([u64; 3]),
    /// Limits.
    Quotas(Vec<Quota>),
    /// A file that was opened, and is at another place than the request says: the client names it by this one from now on.
    OpenedAt(Opened, Place),
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// A read changes the time of last access.
    pub reread: bool,
}

/// A name in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed<'a> {
    /// The inode id.
    pub ino: u64,
    /// The `S_IFMT` bits of its type.
    pub kind: u32,
    /// With this number the listing goes on behind the name.
    pub cookie: u64,
    /// The name.
    pub name: &'a [u8],
    /// What it stands for, if the call asked for attributes.
    pub found: Option<Entry>,
}

/// Limits on a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// The path of the directory.
    pub path: Vec<u8>,
    /// The most bytes.
    pub bytes: Option<u64>,
    /// The most files and directories.
    pub inodes: Option<u64>,
    /// Bytes, files and directories below it.
    pub usage: [u64; 3],
}

/// Why a call failed: [`FsError`] with its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The cause by its number.
    pub cause: u16,
    /// The text of causes that have one.
    pub text: String,
}

/// The call was not made and can be made again later ([`FsError::TryAgain`]).
pub const TRY_AGAIN: u16 = 38;

macro_rules! causes {
    (plain: $($number:literal $variant:ident,)* fixed: $($fixed_number:literal $fixed:ident $said:literal,)*
     text: $($text_number:literal $text:ident,)* names: $($name_number:literal $name:ident,)*) => {
        impl From<&FsError> for Failure {
            fn from(error: &FsError) -> Failure {
                let (cause, text) = match error {
                    $(FsError::$variant => ($number, String::new()),)*
                    $(FsError::$fixed(text) => ($fixed_number, (*text).to_owned()),)*
                    $(FsError::$text(text) => ($text_number, text.clone()),)*
                    $(FsError::Name(NameError::$name) => ($name_number, String::new()),)*
                    // A server waits for locks before it answers.
                    FsError::Blocked(_) => (TRY_AGAIN, String::new()),
                };
                Failure { cause, text }
            }
        }

        impl From<Failure> for FsError {
            fn from(Failure { cause, text }: Failure) -> FsError {
                match cause {
                    $($number => FsError::$variant,)*
                    $($fixed_number => FsError::$fixed($said),)*
                    $($text_number => FsError::$text(text),)*
                    $($name_number => FsError::Name(NameError::$name),)*
                    _ => FsError::Storage(format!("the server fails with cause {cause}: {text}")),
                }
            }
        }

        #[cfg(test)]
        const CAUSES: &[u16] = &[$($number,)* $($fixed_number,)* $($text_number,)* $($name_number,)*];
    };
}

causes! {
    plain:
    1 NotFound, 2 Stale, 3 Exists, 4 NotDirectory, 5 IsDirectory, 6 NotEmpty, 7 IntoOwnSubtree, 8 AccessDenied,
    9 NotPermitted, 10 BadHandle, 11 TextBusy, 12 FileTooLarge, 13 TooLarge, 14 TooManyLinks, 15 QuotaExceeded,
    16 CrossesLimits, 17 ReadOnly, 18 TargetTooLong, 19 NoXattr, 20 XattrExists, 21 XattrTooLarge,
    22 XattrNameTooLong, 23 NoSuchOffset, 24 NotImplemented, 25 DeadlockVictim, 38 TryAgain, 26 Busy, 39 Deadlock,
    40 TooManyLocks, 41 Interrupted,
    fixed:
    27 Invalid "the server refuses the arguments", 28 NotSupported "the server does not support it",
    text:
    29 NoSpace, 30 Conflict, 31 Storage, 32 Damaged,
    names:
    33 TooLong, 34 Empty, 35 ForbiddenByte, 36 Reserved,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_numbers_of_their_own_and_come_back() {
        let mut seen = std::collections::BTreeSet::new();
        for cause in CAUSES {
            assert!(*cause != 0 && seen.insert(*cause), "{cause} is taken");
            let error = FsError::from(Failure { cause: *cause, text: "x".into() });
            assert_eq!(Failure::from(&error).cause, *cause, "{error}");
        }
        let unknown = FsError::from(Failure { cause: 9999, text: "why".into() });
        assert!(matches!(&unknown, FsError::Storage(text) if text.contains("why")), "{unknown}");
    }
}
