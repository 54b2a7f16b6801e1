//! What a tree is, as far as two copies of it must agree: names, types, modes, owners, times, link counts
//! and which names are one file, sizes, symlink targets, device numbers, access control lists, extended attributes, contents.
//!
//! Left out because they are the file system's own business: inode numbers, sizes and link counts of
//! directories' storage, times of access and of change, allocation.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::run::Failure;

/// How many differences an error shows.
const SHOWN_DIFFERENCES: usize = 8;

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// Attributes that are asked for by name.
const ACCESS_CONTROL_LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// A tree, path by path.
pub(super) struct Manifest {
    lines: BTreeMap<PathBuf, String>,
}

impl Manifest {
    /// Walks `root`; `with_contents` reads every file.
    pub(super) fn of(root: &Path, with_contents: bool) -> Result<Manifest, Failure> {
        let mut lines = BTreeMap::new();
        // First path seen of each file with several names.
        let mut linked: HashMap<(u64, u64), PathBuf> = HashMap::new();
        let mut pending = vec![root.to_path_buf()];
        while let Some(path) = pending.pop() {
            let line = describe(&path, root, &mut linked, with_contents)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            if fs::symlink_metadata(&path)?.is_dir() {
                // In descending order, so that they are taken from the end in ascending order.
                let mut names: Vec<PathBuf> = fs::read_dir(&path)?
                    .map(|entry| entry.map(|entry| entry.path()))
                    .collect::<Result<_, _>>()?;
                names.sort_unstable_by(|left, right| right.cmp(left));
                pending.extend(names);
            }
            let relative = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
            lines.insert(relative, line);
        }
        Ok(Manifest { lines })
    }

    /// Forgets the file at `path`, which a copy does not have.
    pub(super) fn leave_out(&mut self, path: &str) {
        self.lines.remove(Path::new(path));
    }

    /// An error that shows the first differences, if there are any.
    pub(super) fn compare(&self, other: &Manifest) -> Result<(), Failure> {
        let paths = self
            .lines
            .keys()
            .chain(other.lines.keys().filter(|path| !self.lines.contains_key(*path)));
        let mut differences: Vec<String> = Vec::new();
        let mut count = 0_usize;
        for path in paths {
            let (left, right) = (self.lines.get(path), other.lines.get(path));
            if left == right {
                continue;
            }
            count += 1;
            if differences.len() < SHOWN_DIFFERENCES {
                let show =
                    |line: Option<&String>| line.map_or("missing", String::as_str).to_owned();
                differences.push(format!(
                    "{}:\n  {}\n  {}",
                    path.display(),
                    show(left),
                    show(right)
                ));
            }
        }
        if count == 0 {
            return Ok(());
        }
        Err(format!("{count} differences, such as\n{}", differences.join("\n")).into())
    }
}

fn describe(
    path: &Path,
    root: &Path,
    linked: &mut HashMap<(u64, u64), PathBuf>,
    with_contents: bool,
) -> Result<String, Failure> {
    let stat = fs::symlink_metadata(path)?;
    let kind = stat.file_type();
    let mut line = format!(
        "mode {:o} owner {}:{} mtime {}.{:09}",
        stat.mode(),
        stat.uid(),
        stat.gid(),
        stat.mtime(),
        stat.mtime_nsec()
    );
    if !stat.is_dir() {
        write!(line, " links {} size {}", stat.nlink(), stat.size())?;
        if stat.nlink() > 1 {
            let first =
                linked.entry((stat.dev(), stat.ino())).or_insert_with(|| path.to_path_buf());
            write!(line, " is {}", first.strip_prefix(root).unwrap_or(first).display())?;
        }
    }
    if kind.is_symlink() {
        write!(line, " -> {:?}", fs::read_link(path)?)?;
    }
    if kind.is_char_device() || kind.is_block_device() {
        write!(line, " device {}", stat.rdev())?;
    }
    if !kind.is_symlink() {
        for (name, value) in xattrs(path)? {
            write!(line, " {}={:02x?}", String::from_utf8_lossy(&name), value)?;
        }
    }
    if with_contents && stat.is_file() {
        write!(line, " content {:016x}", content_hash(path)?)?;
    }
    Ok(line)
}

fn xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Failure> {
    let mut names = vec![0_u8; 64 << 10];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(error) => return Err(error.into()),
    };
    // Whether a file system lists them or not.
    names.truncate(length);
    names.extend(ACCESS_CONTROL_LISTS.iter().flat_map(|name| [name.as_bytes(), b"\0"].concat()));
    let mut found = BTreeMap::new();
    let mut value = vec![0_u8; 64 << 10];
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]) {
            Ok(size) => drop(found.insert(name.to_vec(), value[..size].to_vec())),
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP)
                if ACCESS_CONTROL_LISTS.iter().any(|list| list.as_bytes() == name) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// A hash of the bytes of a file.
pub(super) fn content_hash(path: &Path) -> Result<u64, Failure> {
    let mut file = fs::File::open(path)?;
    let mut buffer = vec![0_u8; READ_BYTES];
    let mut hasher = DefaultHasher::new();
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read(&mut buffer[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        hasher.write(&buffer[..filled]);
        if filled < buffer.len() {
            return Ok(hasher.finish());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found_and_named() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (left, right) = (dir.path().join("l"), dir.path().join("r"));
        for side in [&left, &right] {
            fs::create_dir(side).expect("mkdir");
            fs::write(side.join("a"), "same").expect("write");
            fs::hard_link(side.join("a"), side.join("b")).expect("link");
        }
        let copy_times = || {
            let stat = fs::metadata(left.join("a")).expect("stat").modified().expect("mtime");
            fs::File::options()
                .append(true)
                .open(right.join("a"))
                .expect("open")
                .set_modified(stat)
                .expect("set mtime");
            let stat = fs::metadata(&left).expect("stat").modified().expect("mtime");
            fs::File::open(&right).expect("open").set_modified(stat).expect("set mtime");
        };
        let compare = || {
            let left = Manifest::of(&left, true).expect("walk");
            left.compare(&Manifest::of(&right, true).expect("walk"))
        };
        copy_times();
        compare().expect("equal trees");
        fs::write(right.join("a"), "some").expect("write");
        copy_times();
        assert!(compare().expect_err("other content").to_string().contains("content"));
        fs::write(right.join("a"), "same").expect("write");
        fs::remove_file(right.join("b")).expect("unlink");
        copy_times();
        assert!(compare().expect_err("a name less").to_string().contains("missing"));
    }
}
