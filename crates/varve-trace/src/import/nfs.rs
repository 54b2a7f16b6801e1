//! A text dump of NFS calls and replies, as nfsdump writes it:
//!
//! ```text
//! 1003724400.921018 30.0801 31.03f2 U C3 ec825cbb 3 lookup fh 61890100 name "mail" con = 130 len = 140
//! 1003724400.922018 31.03f2 30.0801 U R3 ec825cbb 3 lookup OK fh 77120400 ftype 1 mode 180 ...
//! ```
//!
//! The words are: the time, the sender, the receiver, the transport, call or reply and version, the number of the
//! call, and the number and name of the procedure. A call continues with pairs of words, and a reply with the status
//! and pairs of words. A call becomes a record when its reply comes, or at the latest when [`PENDING_MAX`] later
//! calls wait.

use std::collections::{BTreeMap, HashMap};

use super::{BadLine, Line, Lines, client, microseconds};
use crate::record::{Op, Record};

/// The most calls without a reply that are remembered. Beyond that the reply of the oldest is taken for lost.
const PENDING_MAX: usize = 1 << 16;
/// The errno of every failed call, because dumps have status names of NFS.
const EIO: u32 = 5;

#[derive(Default)]
pub(super) struct Nfs {
    /// Calls that wait for their replies, by who called and the transaction's number.
    pending: HashMap<(String, String), (u64, Record)>,
    /// The same by age.
    ages: BTreeMap<u64, (String, String)>,
    calls: u64,
}

fn op(procedure: &str) -> Op {
    match procedure {
        "getattr" | "fsstat" | "fsinfo" | "statfs" => Op::Getattr,
        "setattr" => Op::Setattr,
        "lookup" => Op::Lookup,
        "access" => Op::Access,
        "readlink" => Op::Readlink,
        "read" => Op::Read,
        "write" => Op::Write,
        "create" => Op::Create,
        "mkdir" => Op::Mkdir,
        "symlink" => Op::Symlink,
        "mknod" => Op::Mknod,
        "remove" => Op::Unlink,
        "rmdir" => Op::Rmdir,
        "rename" => Op::Rename,
        "link" => Op::Link,
        "readdir" | "readdirp" | "readdirplus" => Op::Readdir,
        "commit" => Op::Fsync,
        _ => Op::Other,
    }
}

/// Returns the words of a line; what is in quotation marks is one.
fn words(line: &str) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), line.trim_start());
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"').and_then(|quoted| quoted.find('"')) {
            Some(end) => end + 2,
            None => rest.find(char::is_whitespace).unwrap_or(rest.len()),
        };
        words.push(rest[..end].trim_matches('"'));
        rest = rest[end..].trim_start();
    }
    words
}

/// Returns the words behind each of `names`, as far as they are there.
fn values<'a, const N: usize>(words: &[&'a str], names: [&str; N]) -> [Option<&'a str>; N] {
    names.map(|name| {
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1).copied()
    })
}

impl Lines for Nfs {
    fn line(&mut self, line: &str, records: &mut Vec<Record>) -> Result<Line, BadLine> {
        let words = words(line);
        let [time, from, to, _, direction, transaction, _, procedure, ref rest @ ..] = words[..]
        else {
            return Ok(Line::LeftOut);
        };
        match direction {
            "C2" | "C3" => {}
            "R2" | "R3" => {
                let record = self.reply((to, transaction), microseconds(time), rest);
                let line = if record.is_some() { Line::Used } else { Line::LeftOut };
                records.extend(record);
                return Ok(line);
            }
            _ => return Ok(Line::LeftOut),
        }
        let at_us = microseconds(time).ok_or_else(|| BadLine(format!("{time} is no time")))?;
        let mut record = Record::new(at_us, client(from), op(procedure));
        let [handle, handle2] = values(rest, ["fh", "fh2"]).map(|handle| handle.map(client));
        let [name, also] = values(rest, ["name", "fn"]);
        let [name2, also2] = values(rest, ["name2", "fn2"]);
        let bytes = |name: Option<&str>| name.unwrap_or_default().as_bytes().to_vec();
        match record.op {
            Op::Lookup
            | Op::Create
            | Op::Mkdir
            | Op::Symlink
            | Op::Mknod
            | Op::Unlink
            | Op::Rmdir => {
                (record.dir, record.name) = (handle, bytes(name.or(also)));
            }
            Op::Rename => {
                (record.dir, record.name) = (handle, bytes(name.or(also)));
                (record.new_dir, record.new_name) = (handle2, bytes(name2.or(also2)));
            }
            Op::Link => {
                (record.object, record.dir) = (handle, handle2);
                record.name = bytes(name2.or(also2).or(name).or(also));
            }
            _ => record.object = handle,
        }
        record.is_dir = matches!(record.op, Op::Readdir | Op::Mkdir | Op::Rmdir);
        self.calls += 1;
        let key = (from.to_owned(), transaction.to_owned());
        self.ages.insert(self.calls, key.clone());
        // A call that was sent again takes the place of the first.
        if let Some((age, _)) = self.pending.insert(key, (self.calls, record)) {
            self.ages.remove(&age);
        }
        if self.pending.len() > PENDING_MAX
            && let Some((_, oldest)) = self.ages.pop_first()
            && let Some((_, record)) = self.pending.remove(&oldest)
        {
            records.push(record);
        }
        Ok(Line::Used)
    }
}

impl Nfs {
    /// Returns the call that this is the reply to.
    fn reply(&mut self, call: (&str, &str), at_us: Option<u64>, rest: &[&str]) -> Option<Record> {
        let (age, mut record) = self.pending.remove(&(call.0.to_owned(), call.1.to_owned()))?;
        self.ages.remove(&age);
        record.took_us = at_us.map_or(0, |at_us| at_us.saturating_sub(record.at_us));
        let is_made =
            matches!(record.op, Op::Lookup | Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod);
        if rest.first().is_none_or(|status| *status != "OK") {
            record.error = EIO;
        } else if is_made {
            let [handle, kind] = values(rest, ["fh", "ftype"]);
            record.object = handle.map(client);
            record.is_dir |= kind == Some("2");
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Source, all};
    use super::*;

    #[test]
    fn calls_and_replies_become_operations() {
        let log = "\
            1003724400.100000 30.0801 31.03f2 U C3 a1 3 lookup fh 6189 name \"my mail\" con = 130 len = 140\n\
            1003724400.100500 31.03f2 30.0801 U R3 a1 3 lookup OK fh 7712 ftype 2 mode 1ed\n\
            1003724401.000000 30.0801 31.03f2 U C3 a2 8 create fh 7712 name \"new\" how U\n\
            1003724401.000000 32.0801 31.03f2 U C3 a2 1 getattr fh 6189\n\
            1003724401.000100 31.03f2 32.0801 U R3 a2 1 getattr OK ftype 2\n\
            1003724401.000200 31.03f2 30.0801 U R3 a2 8 create OK fh 8800 ftype 1\n\
            1003724402.000000 30.0801 31.03f2 U C3 a3 e rename fh 7712 name \"new\" fh2 6189 name2 \"old\"\n\
            1003724402.000100 31.03f2 30.0801 U R3 a3 e rename OK\n\
            1003724403.000000 30.0801 31.03f2 U C3 a4 c remove fh 7712 name \"new\"\n\
            1003724403.000100 31.03f2 30.0801 U R3 a4 c remove 2\n\
            1003724403.000200 31.03f2 30.0801 U R3 a9 c remove OK\n";
        let (records, imported) = all(Source::Nfs, log).expect("imported");
        assert_eq!((imported.records, imported.left_out), (5, 1));
        let [lookup, getattr, create, rename, remove] = &records[..] else { panic!("{records:?}") };
        assert_eq!((lookup.name.as_slice(), lookup.took_us), (&b"my mail"[..], 500));
        assert!(lookup.is_dir && lookup.object == create.dir && lookup.dir == getattr.object);
        assert!(create.object.is_some() && !create.is_dir);
        assert_eq!((rename.dir, rename.new_dir), (create.dir, lookup.dir));
        assert_eq!((rename.new_name.as_slice(), remove.error), (&b"old"[..], EIO));
        assert_ne!(getattr.client, create.client);
    }

    #[test]
    fn calls_without_a_reply_are_not_kept_for_ever() {
        let mut nfs = Nfs::default();
        let mut records = Vec::new();
        for call in 0..PENDING_MAX + 1000 {
            let line = format!("{call}.0 30 31 U C3 {call:x} 1 getattr fh 1");
            assert!(nfs.line(&line, &mut records).is_ok());
        }
        assert_eq!(
            (records.len(), nfs.pending.len(), nfs.ages.len()),
            (1000, PENDING_MAX, PENDING_MAX)
        );
    }
}
