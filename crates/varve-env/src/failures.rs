//! Kinds of failures of the machine, which all crates distinguish in the same way.

use std::fmt;
use std::io;

/// An error with its own text and the error number of the operating system.
#[derive(Debug)]
struct Told {
    text: String,
    number: Option<i32>,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Told {}

fn number(error: &io::Error) -> Option<i32> {
    let told = || error.get_ref()?.downcast_ref::<Told>()?.number;
    error.raw_os_error().or_else(told)
}

/// Returns the same error with `text` as its message.
pub fn told(error: &io::Error, text: String) -> io::Error {
    io::Error::new(error.kind(), Told { text, number: number(error) })
}

/// Returns true if the operation did nothing because a descriptor or memory was missing, which may be available again
/// later. A sync that was tried never fails so, because its changes may be lost.
pub fn is_passing(error: &io::Error) -> bool {
    /// ENOMEM, ENFILE, EMFILE.
    const PASSING: [i32; 3] = [12, 23, 24];
    number(error).is_some_and(|number| PASSING.contains(&number))
}

/// Returns true if the storage is full, or the user's quota is used up.
pub fn is_no_space(error: &io::Error) -> bool {
    /// ENOSPC, EDQUOT.
    const NO_SPACE: [i32; 2] = [28, 122];
    error.kind() == io::ErrorKind::StorageFull
        || number(error).is_some_and(|number| NO_SPACE.contains(&number))
}

/// Returns true if the content of a file cannot be read by anyone.
pub fn is_unreadable(error: &io::Error) -> bool {
    /// EIO, EBADMSG, EUCLEAN.
    const UNREADABLE: [i32; 3] = [5, 74, 117];
    number(error).is_some_and(|number| UNREADABLE.contains(&number))
}

/// Converts the result of a sync that was tried.
pub(crate) fn tried(synced: io::Result<()>) -> io::Result<()> {
    synced.map_err(|error| match is_passing(&error) {
        // Without the number, so that the failure does not count as passing.
        true => io::Error::new(error.kind(), error.to_string()),
        false => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_that_was_tried_does_not_fail_as_one_that_did_nothing() {
        for number in [12, 23, 24] {
            let error = || io::Error::from_raw_os_error(number);
            assert!(is_passing(&error()));
            let named = told(&error(), "cannot sync /x".to_owned());
            assert!(is_passing(&named) && is_passing(&told(&named, "again".to_owned())));
            assert_eq!(
                (named.kind(), named.to_string()),
                (error().kind(), "cannot sync /x".into())
            );
            for error in [error(), named] {
                let tried = tried(Err(told(&error, error.to_string()))).unwrap_err();
                assert!(!is_passing(&tried));
                assert_eq!((tried.kind(), tried.to_string()), (error.kind(), error.to_string()));
            }
        }
        let failed = tried(Err(io::Error::from_raw_os_error(5))).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(5));
    }
}
