//! The output of `strace -f -ttt -T -y` about calls that name files:
//!
//! ```text
//! 4711  1700000000.123456 openat(AT_FDCWD</home/me>, "src/a.c", O_RDONLY|O_CLOEXEC) = 3</home/me/src/a.c> <0.000021>
//! [pid  4712] 1700000000.123460 rename("/tmp/x", "/tmp/y" <unfinished ...>
//! [pid  4712] 1700000000.123490 <... rename resumed>) = -1 ENOENT (No such file or directory) <0.000030>
//! ```
//!
//! 1. A line is split into thread, time, call, arguments and result. The two parts of an interrupted call are joined.
//! 2. A relative path begins at the directory that `-y` prints for the descriptor, or else at the root.
//! 3. A call is one operation on the object of its path or descriptor.
//!
//! Invariant: at most one interrupted call for each thread is remembered.

use std::collections::HashMap;

use super::paths::Paths;
use super::{BadLine, Line, Lines, microseconds};
use crate::record::{Op, Record};

/// The most interrupted calls that are remembered, one for each thread.
const UNFINISHED_MAX: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Strace {
    paths: Paths,
    /// The first part of each interrupted call, by thread.
    unfinished: HashMap<u64, (u64, String)>,
}

/// What one argument is.
#[derive(Debug, PartialEq, Eq)]
enum Argument<'a> {
    /// A text, without its quotation marks.
    Text(&'a str),
    /// A descriptor with the path that it is open for.
    At(&'a str),
    /// Anything else.
    Other(&'a str),
}

/// Splits arguments at commas outside of texts and brackets. Also returns what follows the arguments.
fn arguments(call: &str) -> Option<(Vec<Argument<'_>>, &str)> {
    let (mut all, mut begin, mut depth) = (Vec::new(), 0, 0_u32);
    let (mut in_text, mut is_escaped) = (false, false);
    for (at, byte) in call.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b')' if depth == 0 => {
                all.push(argument(&call[begin..at]));
                return Some((all, &call[at + 1..]));
            }
            b')' | b']' | b'}' | b'>' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                all.push(argument(&call[begin..at]));
                begin = at + 1;
            }
            _ => {}
        }
    }
    None
}

fn argument(text: &str) -> Argument<'_> {
    let text = text.trim();
    if let Some(rest) = text.strip_prefix('"') {
        return Argument::Text(rest.rfind('"').map_or(rest, |end| &rest[..end]));
    }
    match text.split_once('<').and_then(|(_, path)| path.strip_suffix('>')) {
        Some(path) if path.starts_with('/') => Argument::At(path),
        _ => Argument::Other(text),
    }
}

/// Returns the paths in their order: each text, below the descriptor before it.
fn paths(arguments: &[Argument<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let mut base = None;
    for argument in arguments {
        match argument {
            Argument::At(path) => base = Some(*path),
            Argument::Text("") => found.extend(base.take().map(str::to_owned)),
            Argument::Text(path) if path.starts_with('/') => {
                found.push((*path).to_owned());
                base = None;
            }
            Argument::Text(path) => found.push(format!("{}/{path}", base.take().unwrap_or(""))),
            Argument::Other(_) => {}
        }
    }
    // A call on a descriptor alone.
    if found.is_empty() {
        found.extend(base.map(str::to_owned));
    }
    found
}

fn op(name: &str, arguments: &[Argument<'_>]) -> Option<Op> {
    let has = |flag: &str| {
        arguments.iter().any(|it| matches!(it, Argument::Other(text) if text.split('|').any(|one| one.trim() == flag)))
    };
    Some(match name {
        "open" | "openat" | "openat2" if has("O_CREAT") => Op::Create,
        "open" | "openat" | "openat2" => Op::Open,
        "creat" => Op::Create,
        "stat" | "lstat" | "fstat" | "newfstatat" | "statx" | "statfs" | "fstatfs" => Op::Getattr,
        "access" | "faccessat" | "faccessat2" => Op::Access,
        "mkdir" | "mkdirat" => Op::Mkdir,
        "mknod" | "mknodat" => Op::Mknod,
        "rmdir" => Op::Rmdir,
        "unlinkat" if has("AT_REMOVEDIR") => Op::Rmdir,
        "unlink" | "unlinkat" => Op::Unlink,
        "rename" | "renameat" | "renameat2" => Op::Rename,
        "link" | "linkat" => Op::Link,
        "symlink" | "symlinkat" => Op::Symlink,
        "readlink" | "readlinkat" => Op::Readlink,
        "chmod" | "fchmod" | "fchmodat" | "chown" | "lchown" | "fchown" | "fchownat" | "utime"
        | "utimes" | "utimensat" | "futimesat" | "truncate" | "ftruncate" => Op::Setattr,
        "getdents" | "getdents64" => Op::Readdir,
        "read" | "pread64" | "readv" | "preadv" | "preadv2" => Op::Read,
        "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2" | "fallocate" => Op::Write,
        "fsync" | "fdatasync" | "sync_file_range" => Op::Fsync,
        "close" => Op::Close,
        "getxattr" | "lgetxattr" | "fgetxattr" | "setxattr" | "lsetxattr" | "fsetxattr"
        | "listxattr" | "llistxattr" | "flistxattr" | "removexattr" | "lremovexattr"
        | "fremovexattr" => Op::Xattr,
        _ => return None,
    })
}

/// Returns the number of an errno by its name, for the errnos of calls with paths; EIO for all others.
fn errno(name: &str) -> u32 {
    match name {
        "EPERM" => 1,
        "ENOENT" => 2,
        "EINTR" => 4,
        "EBADF" => 9,
        "EACCES" => 13,
        "EEXIST" => 17,
        "EXDEV" => 18,
        "ENOTDIR" => 20,
        "EISDIR" => 21,
        "EINVAL" => 22,
        "ENOSPC" => 28,
        "EROFS" => 30,
        "ENAMETOOLONG" => 36,
        "ENOTEMPTY" => 39,
        "ELOOP" => 40,
        "ENODATA" => 61,
        "EOPNOTSUPP" => 95,
        _ => 5,
    }
}

impl Lines for Strace {
    fn line(&mut self, line: &str, records: &mut Vec<Record>) -> Result<Line, BadLine> {
        let (thread, rest) = thread(line);
        let Some((time, call)) = rest.split_once(' ') else { return Ok(Line::LeftOut) };
        let Some(at_us) = microseconds(time).filter(|_| time.contains('.')) else {
            return Ok(Line::LeftOut);
        };
        let call = call.trim_start();
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            if self.unfinished.len() < UNFINISHED_MAX {
                self.unfinished.insert(thread, (at_us, begun.trim_end().to_owned()));
            }
            return Ok(Line::Used);
        }
        let resumed = call.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>"));
        let Some((_, end)) = resumed else { return self.call((at_us, thread), call, records) };
        match self.unfinished.remove(&thread) {
            Some((at_us, begun)) => self.call((at_us, thread), &format!("{begun}{end}"), records),
            None => Ok(Line::LeftOut),
        }
    }
}

/// Returns the thread at the beginning of a line (0 if there is none) and the rest.
fn thread(line: &str) -> (u64, &str) {
    let line = line.trim_start();
    let (number, rest) = match line.strip_prefix("[pid") {
        Some(rest) => rest.split_once(']').unwrap_or(("", line)),
        None => line.split_once(' ').unwrap_or(("", line)),
    };
    match number.trim().parse() {
        Ok(thread) => (thread, rest.trim_start()),
        Err(_) => (0, line),
    }
}

impl Strace {
    fn call(
        &mut self,
        (at_us, thread): (u64, u64),
        call: &str,
        records: &mut Vec<Record>,
    ) -> Result<Line, BadLine> {
        let Some((name, rest)) = call.split_once('(') else { return Ok(Line::LeftOut) };
        let Some((arguments, result)) = arguments(rest) else {
            return Err(BadLine(format!("the call of {name} has no end")));
        };
        // Calls on a descriptor alone may have texts that are no paths.
        let is_at = name.trim_end_matches('2').ends_with("at") || name == "statx";
        let paths = match &arguments[..] {
            [Argument::At(path), ..] if !is_at || name == "fstat" => vec![(*path).to_owned()],
            all => paths(all),
        };
        let (Some(op), Some(path)) = (op(name, &arguments), paths.first()) else {
            return Ok(Line::LeftOut);
        };
        let mut record = Record::new(at_us, thread, op);
        let result = result.trim_start().strip_prefix('=').unwrap_or("").trim_start();
        if let Some(failed) = result.strip_prefix("-1 ") {
            record.error = errno(failed.split_whitespace().next().unwrap_or_default());
        }
        let took = result.rsplit_once('<').and_then(|(_, took)| took.strip_suffix('>'));
        record.took_us = took.and_then(microseconds).unwrap_or(0);
        record.is_dir = matches!(op, Op::Readdir | Op::Mkdir | Op::Rmdir);
        let is_well = record.error == 0;
        match (op, paths.get(1)) {
            (Op::Rename, Some(to)) => {
                self.paths.name(&mut record, path);
                self.paths.name_again(&mut record, to);
                if is_well {
                    self.paths.moved(&record, path);
                }
            }
            (Op::Link, Some(to)) => {
                let mut linked = Record::new(at_us, thread, op);
                self.paths.name(&mut linked, path);
                if let Some(object) = linked.object.filter(|_| is_well) {
                    self.paths.linked(object, to);
                }
                self.paths.name(&mut record, to);
                record.object = linked.object;
            }
            // The first one is only what it says.
            (Op::Symlink, Some(at)) => self.paths.name(&mut record, at),
            _ => {
                self.paths.name(&mut record, path);
                if matches!(op, Op::Unlink | Op::Rmdir) && is_well {
                    self.paths.remove(path);
                }
            }
        }
        self.paths.put(record, records);
        Ok(Line::Used)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Source, all};
    use super::*;

    #[test]
    fn calls_become_operations() {
        let log = "\
            4711  1700000000.000100 execve(\"/bin/sh\", [\"sh\"], 0x7ffc /* 20 vars */) = 0 <0.000400>\n\
            4711  1700000000.100000 openat(AT_FDCWD</home/me>, \"src/a, b.c\", O_WRONLY|O_CREAT, 0666) = 3</home/me/src/a, b.c> <0.000021>\n\
            4711  1700000000.100100 write(3</home/me/src/a, b.c>, \"x\\\"), \\n\", 5) = 5 <0.000010>\n\
            [pid  4712] 1700000000.100150 renameat2(AT_FDCWD</home/me>, \"src/a, b.c\", AT_FDCWD</home/me>, \"/tmp/y\", RENAME_NOREPLACE <unfinished ...>\n\
            4711  1700000000.100160 fstat(3</home/me/src/a, b.c>, {st_mode=S_IFREG|0644, st_size=5, ...}) = 0 <0.000004>\n\
            [pid  4712] 1700000000.100200 <... renameat2 resumed>) = 0 <0.000050>\n\
            4711  1700000000.100300 unlinkat(AT_FDCWD</home/me>, \"src\", AT_REMOVEDIR) = -1 ENOTEMPTY (Directory not empty) <0.000009>\n\
            4711  1700000000.100400 newfstatat(3</tmp/y>, \"\", {st_mode=S_IFREG|0644, st_size=5, ...}, AT_EMPTY_PATH) = 0 <0.000004>\n\
            4711  1700000000.100500 +++ exited with 0 +++\n";
        let (records, imported) = all(Source::Strace, log).expect("imported");
        assert_eq!((imported.records, imported.left_out), (6, 2), "{records:#?}");
        let [create, write, stat, rename, rmdir, again] = &records[..] else {
            panic!("{records:?}")
        };
        assert_eq!(
            (create.op, create.took_us, create.name.as_slice()),
            (Op::Create, 21, &b"a, b.c"[..])
        );
        assert!(create.object.is_some() && write.object == create.object);
        assert_eq!((stat.op, stat.object), (Op::Getattr, create.object));
        assert_eq!((rename.op, rename.client, rename.took_us), (Op::Rename, 4712, 50));
        assert_eq!((rename.at_us, rename.new_name.as_slice()), (1_700_000_000_100_150, &b"y"[..]));
        assert_eq!((rmdir.op, rmdir.error, rmdir.is_dir), (Op::Rmdir, 39, true));
        assert_eq!((again.object, again.dir), (create.object, rename.new_dir));
        let error = all(Source::Strace, "1 1700000000.1 open(\"/x\", O_RDONLY\n").expect_err("cut");
        assert_eq!(error.to_string(), "line 1: the call of open has no end");
    }

    #[test]
    fn links_share_their_object_and_symbolic_links_have_their_own() {
        let log = "1 1.0 creat(\"/a\", 0644) = 3\n1 2.0 link(\"/a\", \"/d/b\") = 0\n\
            1 3.0 symlink(\"/a\", \"/s\") = 0\n1 4.0 stat(\"/d/b\", {}) = 0\n";
        let (records, _) = all(Source::Strace, log).expect("imported");
        assert_eq!((records[1].object, records[3].object), (records[0].object, records[0].object));
        assert_eq!(records[1].name, b"b");
        assert!(records[2].object != records[0].object && records[2].name == b"s");
    }
}
