//! Addresses of metadata servers, in the place of a store's path.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use varve::{Error, Result, anchor};
use varve_wire::PORT;

/// How an address of a server begins.
const SCHEME: &str = "varve://";
/// Where a mounted file system is: `varve://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    /// Host and port.
    pub(crate) host: String,
    /// The directory, from the root of the file system.
    pub(crate) path: String,
}

impl ServerAddress {
    /// Reads an address; `None` if `source` is none.
    pub(crate) fn parse(source: &Path) -> Option<Result<ServerAddress>> {
        let rest = source.to_str()?.strip_prefix(SCHEME)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The address of an IPv6 host has colons and stands in brackets.
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        Some(if host.is_empty() || host.starts_with(':') {
            Err(Error::usage(format!("{} names no host", source.display()))
                .hint("an address is varve://HOST[:PORT][/PATH]"))
        } else {
            let host = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
            Ok(ServerAddress { host, path: path.trim_matches('/').to_owned() })
        })
    }
}

/// Reads the secret that a server and its clients share, without white space around it. A file that holds none is refused.
pub fn read_token(path: &Path) -> Result<Vec<u8>> {
    let read = std::fs::read(path).map_err(|error| Error::io("read", path, &error))?;
    match read.trim_ascii() {
        [] => Err(Error::failed(format!("{} holds no secret", path.display()))
            .hint("`openssl rand -hex 32` makes one")),
        token => Ok(token.to_vec()),
    }
}

/// Returns whether `source` is the address of a server.
pub fn is_server(source: &OsStr) -> bool {
    source.to_str().is_some_and(|source| source.starts_with(SCHEME))
}

/// The directory in which the mount of `source` on `dir` keeps its messages, made if it is missing.
pub(crate) fn state_dir(source: &Path, dir: &Path) -> Result<PathBuf> {
    anchor::dir_for(&format!("{} {}", source.display(), dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(read_token(&path).is_err());
        std::fs::write(&path, "\n").unwrap();
        assert!(read_token(&path).is_err());
        std::fs::write(&path, " s3cret\n").unwrap();
        assert_eq!(read_token(&path).unwrap(), b"s3cret");
    }

    #[test]
    fn addresses_have_a_host_and_may_have_a_port_and_a_path() {
        let parse = |text: &str| {
            let address = ServerAddress::parse(Path::new(text))?.ok()?;
            Some((address.host, address.path))
        };
        let both = |host: &str, path: &str| Some((host.to_owned(), path.to_owned()));
        assert_eq!(parse("varve://a"), both("a:7377", ""));
        assert_eq!(parse("varve://a:1/b/c/"), both("a:1", "b/c"));
        assert_eq!(parse("varve://[::1]/b"), both("[::1]:7377", "b"));
        assert_eq!(parse("varve://[::1]:9"), both("[::1]:9", ""));
        assert!(ServerAddress::parse(Path::new("/srv/store")).is_none());
        assert!(
            ServerAddress::parse(Path::new("varve:///x")).is_some_and(|address| address.is_err())
        );
    }
}
