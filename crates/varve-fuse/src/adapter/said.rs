//! Parses the names and values of attributes and the arguments of ioctls by which programs ask for transactions and
//! limits. Refuses everything else.

use varve_vfs::{FsError, FsResult, Transact, TreeLimits};

const BEGIN_XATTR: &[u8] = b"varve.txn-begin";
const COMMIT_XATTR: &[u8] = b"varve.txn-commit";
const ABORT_XATTR: &[u8] = b"varve.txn-abort";

/// Returns the options if the attribute `name` begins a transaction.
pub(crate) fn beginning(name: &[u8]) -> Option<&[u8]> {
    match name.strip_prefix(BEGIN_XATTR)? {
        [] => Some(&[]),
        [b',', how @ ..] => Some(how),
        _ => None,
    }
}

/// Returns how the attribute `name` ends a transaction, if it does.
pub(crate) fn ending(name: &[u8]) -> Option<fn(u64) -> Transact> {
    match name {
        COMMIT_XATTR => Some(Transact::Commit),
        ABORT_XATTR => Some(Transact::Abort),
        _ => None,
    }
}

/// Returns the id in the argument of an ioctl.
pub(crate) fn id_in(brought: &[u8]) -> FsResult<u64> {
    let wrong = FsError::Invalid("this is no transaction");
    let Some((id, flags)) = brought.split_first_chunk::<8>() else { return Err(wrong) };
    match flags == [0; 8] {
        true => Ok(u64::from_ne_bytes(*id)),
        false => Err(wrong),
    }
}

/// Parses `bytes=N inodes=N`.
pub(crate) fn limits_in(value: &[u8]) -> Option<TreeLimits> {
    let mut limits = TreeLimits::default();
    for word in std::str::from_utf8(value).ok()?.split_ascii_whitespace() {
        let (name, number) = word.split_once('=')?;
        let number = Some(number.parse().ok()?);
        match name {
            "bytes" => limits.bytes = number,
            "inodes" => limits.inodes = number,
            _ => return None,
        }
    }
    (limits != TreeLimits::default()).then_some(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_begin_may_say_how() {
        assert_eq!(beginning(b"varve.txn-begin"), Some(&b""[..]));
        assert_eq!(beginning(b"varve.txn-begin,a=b,c=d"), Some(&b"a=b,c=d"[..]));
        for other in ["varve.txn", "varve.txn-beginning", "varve.txn-commit", "user.txn-begin"] {
            assert_eq!(beginning(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn what_an_ioctl_brings_is_an_id_and_no_flags() {
        let of = |id: u64, flags: u64| [id.to_ne_bytes(), flags.to_ne_bytes()].concat();
        assert_eq!(id_in(&of(77, 0)).unwrap(), 77);
        for wrong in [of(77, 1), of(77, 0)[..15].to_vec(), vec![], [of(1, 0), vec![0]].concat()] {
            assert!(id_in(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn limits_are_read_and_anything_else_is_refused() {
        let limits = |bytes, inodes| Some(TreeLimits { bytes, inodes });
        assert_eq!(limits_in(b"bytes=10 inodes=3"), limits(Some(10), Some(3)));
        assert_eq!(limits_in(b" inodes=0\n"), limits(None, Some(0)));
        for wrong in [
            "",
            " ",
            "bytes",
            "bytes=",
            "bytes=-1",
            "bytes=1K",
            "size=1",
            "bytes=99999999999999999999",
        ] {
            assert_eq!(limits_in(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
