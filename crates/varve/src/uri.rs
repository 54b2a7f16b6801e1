//! Addresses of stores.

use std::path::PathBuf;

use crate::{Error, Result};

/// The directory that `uri` names: a path as it is, or behind `file://` or `varve:`. A path that looks like
/// an address can be given as `./name:with-a-colon`.
pub(crate) fn store_path(uri: &str) -> Result<PathBuf> {
    if uri.is_empty() {
        return Err(Error::usage("the address of the store is empty")
            .hint("give the directory that `varve format` was given"));
    }
    for scheme in ["file:", "varve:"] {
        if let Some(rest) = uri.strip_prefix(scheme) {
            // An authority would be between the second and the third slash; a store is on this machine.
            return match rest.strip_prefix("//") {
                Some(path) if path.starts_with('/') => Ok(PathBuf::from(path)),
                Some(_) => Err(Error::usage(format!("{uri} names another machine"))
                    .hint(format!("a store on this machine is {scheme}///path"))),
                None if rest.is_empty() => Err(Error::usage(format!("{uri} names no directory"))
                    .hint(format!("a store on this machine is {scheme}///path"))),
                None => Ok(PathBuf::from(rest)),
            };
        }
    }
    match uri.split_once(':') {
        Some((scheme, _)) if is_scheme(scheme) => {
            Err(Error::usage(format!("{scheme}: is no kind of store"))
                .hint("use a path, file:///path or varve:/path"))
        }
        _ => Ok(PathBuf::from(uri)),
    }
}

/// Whether `text` has the form of a scheme (RFC 3986, section 3.1).
fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_addresses() {
        for (uri, path) in [
            ("/srv/store", "/srv/store"),
            ("store", "store"),
            ("./a:b", "./a:b"),
            ("file:///srv/store", "/srv/store"),
            ("varve:/srv/store", "/srv/store"),
            ("varve:///srv/store", "/srv/store"),
            ("varve:store", "store"),
        ] {
            assert_eq!(store_path(uri).unwrap(), PathBuf::from(path), "{uri}");
        }
        for uri in ["", "s3://bucket/x", "file://host/x", "varve:"] {
            assert!(store_path(uri).is_err(), "{uri}");
        }
    }
}
