//! Exports: which clients may mount which directory, in the format of exports(5).
//!
//! 1. [`Export::parse`] reads a line.
//! 2. [`Export::terms`] says what the client at an address may do.
//! 3. [`Terms::mapped_user`] maps the ids of a client's user.
//!
//! Invariant: a client that no entry of an export matches may do nothing there.
//!
//! ```text
//! /               10.0.0.0/8(rw) 127.0.0.1(rw,no_root_squash)
//! /public         *(ro,all_squash)
//! ```
//!
//! The server knows a client only by its address, and believes the ids of its users: NFS with AUTH_SYS is like this.
//! A client that may mount a directory can forge handles, and so reach every file that permissions do not protect,
//! even outside of that directory.

use std::net::IpAddr;

use crate::rpc::Credentials;

/// The ids of nobody.
const NOBODY: u32 = 65_534;

/// Why a line of exports(5) cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line:?}: {what}")]
pub struct ExportError {
    line: String,
    what: String,
}

/// A set of clients, by their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hosts {
    All,
    /// The addresses that begin with these bits.
    Network(IpAddr, u8),
}

/// Which users of a client become nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Squash {
    None,
    Root,
    All,
}

/// What clients may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    hosts: Hosts,
    pub(crate) read_only: bool,
    squash: Squash,
    nobody: (u32, u32),
    /// The server answers changes before they are durable.
    pub(crate) is_async: bool,
}

/// A directory that clients may mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its path from the root of the file system, without a slash at the end; empty for the root.
    pub(crate) path: String,
    terms: Vec<Terms>,
}

/// The user of a call, after the export has mapped the ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

impl Export {
    /// Parses a line of exports(5): a path and clients. A client is an address, a network ADDRESS/BITS or `*`, with
    /// options in brackets after it. The options are `ro`, `rw`, `root_squash`, `no_root_squash`, `all_squash`,
    /// `anonuid=N`, `anongid=N`, `sync` and `async`. Without options a client may only read, and its root is nobody.
    pub fn parse(line: &str) -> Result<Export, ExportError> {
        let wrong = |what: String| ExportError { line: line.to_owned(), what };
        let mut words = line.split_whitespace();
        let path = words.next().filter(|path| path.starts_with('/'));
        let path = path.ok_or_else(|| wrong("it does not begin with a path".to_owned()))?;
        let terms: Vec<Terms> = words.map(Terms::parse).collect::<Result<_, _>>().map_err(wrong)?;
        if terms.is_empty() {
            return Err(wrong("it names no client; `*` is all".to_owned()));
        }
        Ok(Export { path: path.trim_end_matches('/').to_owned(), terms })
    }

    /// Returns the path as users write it.
    pub(crate) fn shown_path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }

    /// Which clients may mount it.
    pub(crate) fn clients(&self) -> impl Iterator<Item = String> {
        self.terms.iter().map(|terms| match terms.hosts {
            Hosts::All => "*".to_owned(),
            Hosts::Network(address, bits) => format!("{address}/{bits}"),
        })
    }

    /// Returns what the client at `address` may do, by the first entry that matches.
    pub(crate) fn terms(&self, address: IpAddr) -> Option<&Terms> {
        self.terms.iter().find(|terms| terms.hosts.has(address))
    }
}

impl Terms {
    fn parse(word: &str) -> Result<Terms, String> {
        let (hosts, options) = match word.split_once('(') {
            Some((hosts, options)) => {
                let options = options.strip_suffix(')');
                (hosts, options.ok_or_else(|| format!("{word} has no closing bracket"))?)
            }
            None => (word, ""),
        };
        let mut terms = Terms {
            hosts: Hosts::parse(hosts)?,
            read_only: true,
            squash: Squash::Root,
            nobody: (NOBODY, NOBODY),
            is_async: false,
        };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let number = |value: &str| {
                value
                    .parse()
                    .map_err(|_| format!("{option}: {value} is no number of a user or group"))
            };
            match option.split_once('=') {
                Some(("anonuid", value)) => terms.nobody.0 = number(value)?,
                Some(("anongid", value)) => terms.nobody.1 = number(value)?,
                _ => match option {
                    "ro" => terms.read_only = true,
                    "rw" => terms.read_only = false,
                    "no_root_squash" => terms.squash = Squash::None,
                    "root_squash" => terms.squash = Squash::Root,
                    "all_squash" => terms.squash = Squash::All,
                    "sync" => terms.is_async = false,
                    "async" => terms.is_async = true,
                    _ => return Err(format!("there is no option {option}")),
                },
            }
        }
        Ok(terms)
    }

    /// Returns the user of a call with these credentials.
    pub(crate) fn mapped_user(&self, credentials: &Credentials) -> MappedUser {
        let (uid, gid) = self.nobody;
        let nobody = MappedUser { uid, gid, groups: Vec::new() };
        match credentials {
            Credentials::None => nobody,
            Credentials::Sys { uid: 0, .. } if self.squash != Squash::None => nobody,
            Credentials::Sys { .. } if self.squash == Squash::All => nobody,
            Credentials::Sys { uid, gid, groups } => {
                // The group of root is squashed too.
                let squashed = |group: &u32| match (*group, self.squash) {
                    (0, Squash::Root) => self.nobody.1,
                    (group, _) => group,
                };
                let groups = groups.iter().map(squashed).collect();
                MappedUser { uid: *uid, gid: squashed(gid), groups }
            }
        }
    }
}

impl Hosts {
    fn parse(text: &str) -> Result<Hosts, String> {
        if text == "*" {
            return Ok(Hosts::All);
        }
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| {
            format!("{text} is neither an address, nor a network ADDRESS/BITS, nor *")
        })?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(all), str::parse).ok().filter(|bits| *bits <= all);
        Ok(Hosts::Network(address, bits.ok_or_else(|| format!("{text} has no number of bits"))?))
    }

    fn has(self, client: IpAddr) -> bool {
        let first =
            |bits: u8, all: u8, number: u128| number.checked_shr((all - bits).into()).unwrap_or(0);
        match (self, client.to_canonical()) {
            (Hosts::All, _) => true,
            (Hosts::Network(IpAddr::V4(network), bits), IpAddr::V4(client)) => {
                let [network, client] = [network, client].map(|it| u128::from(u32::from(it)));
                first(bits, 32, network) == first(bits, 32, client)
            }
            (Hosts::Network(IpAddr::V6(network), bits), IpAddr::V6(client)) => {
                first(bits, 128, network.into()) == first(bits, 128, client.into())
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn clients_are_found_by_their_addresses() {
        let export =
            Export::parse("/a/b/ 10.1.0.0/16(rw) 10.0.0.0/8 fe80::/10(rw) 192.168.7.1(rw,async)");
        let export = export.expect("an export");
        assert_eq!(export.path, "/a/b");
        let read_only = |client: &str| export.terms(address(client)).map(|terms| terms.read_only);
        assert_eq!((read_only("10.1.2.3"), read_only("10.2.2.3")), (Some(false), Some(true)));
        assert_eq!((read_only("fe81::7"), read_only("2001::7")), (Some(false), None));
        assert_eq!((read_only("192.168.7.1"), read_only("192.168.7.2")), (Some(false), None));
        assert_eq!(read_only("::ffff:10.1.9.9"), Some(false), "the same in the other notation");
        let all = Export::parse("/ *(rw) ").expect("an export");
        assert!(all.path.is_empty() && all.terms(address("1.2.3.4")).is_some());
        let zero = Export::parse("/ 0.0.0.0/0").expect("an export");
        assert!(zero.terms(address("9.9.9.9")).is_some() && zero.terms(address("::1")).is_none());
    }

    #[test]
    fn root_is_nobody_unless_it_may_be() {
        let mapped_user = |options: &str, uid: u32| {
            let export = Export::parse(&format!("/ *({options})")).expect("an export");
            let credentials = Credentials::Sys { uid, gid: 0, groups: vec![0, 7] };
            export.terms(address("::1")).expect("terms").mapped_user(&credentials)
        };
        let of = |uid, gid, groups: &[u32]| MappedUser { uid, gid, groups: groups.to_vec() };
        assert_eq!(mapped_user("rw", 0), of(NOBODY, NOBODY, &[]));
        assert_eq!(mapped_user("rw", 5), of(5, NOBODY, &[NOBODY, 7]));
        assert_eq!(mapped_user("no_root_squash", 0), of(0, 0, &[0, 7]));
        assert_eq!(mapped_user("all_squash,anonuid=9,anongid=8", 5), of(9, 8, &[]));
    }

    #[test]
    fn lines_that_make_no_sense_say_why() {
        for (line, why) in [
            ("", "begin with a path"),
            ("a *", "begin with a path"),
            ("/a", "names no client"),
            ("/a host", "neither an address"),
            ("/a 1.2.3.4/33", "no number of bits"),
            ("/a *(rw", "no closing bracket"),
            ("/a *(insecure_maybe)", "no option insecure_maybe"),
            ("/a *(anonuid=x)", "no number of a user"),
        ] {
            let error = Export::parse(line).expect_err(line).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
