//! The shape of a namespace: which directory is in which, and how many files and directories each holds.
//!
//! It comes from a tree of files, from a dump, from what a trace tells of a tree, or from the generator. Names, sizes and attributes are of no interest to how ids are
//! given. Memory: 24 bytes per directory, and while a dump is read a table of the numbers of directories.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use crate::Failure;
use crate::trace::for_each_record;
use crate::tree::Tree;
use crate::walk::{Visitor, walk};

/// A directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dir {
    /// Its parent's place in [`Shape::dirs`]; the root's is its own.
    pub(super) parent: u32,
    /// Its number among its parent's subdirectories, from 1, in the order in which they were found; the root's is 0.
    pub(super) rank: u32,
    /// Subdirectories.
    pub(super) dirs: u32,
    /// How far below the root.
    pub(super) depth: u32,
    /// Names of files of all kinds.
    pub(super) files: u64,
}

/// A namespace, each directory behind its parent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) dirs: Vec<Dir>,
}

impl Shape {
    fn new() -> Shape {
        Shape { dirs: Vec::new() }
    }

    /// Adds a directory; the first one is the root.
    fn add(&mut self, parent: Option<u32>, files: u64) -> Result<u32, Failure> {
        let at = u32::try_from(self.dirs.len())
            .map_err(|_| "more than 4,294,967,296 directories are too many")?;
        let mut dir = Dir { parent: at, rank: 0, dirs: 0, depth: 0, files };
        if let Some(parent) = parent {
            let above = &mut self.dirs[parent as usize];
            above.dirs += 1;
            dir = Dir { parent, rank: above.dirs, depth: above.depth + 1, ..dir };
        }
        self.dirs.push(dir);
        Ok(at)
    }

    /// The shape of the tree at `root`.
    pub(super) fn of_tree(root: &Path) -> Result<Shape, Failure> {
        let mut found = Found { shape: Shape::new(), failed: None };
        walk(root, &mut found)?;
        found.failed.map_or(Ok(found.shape), Err)
    }

    /// The shape of a namespace of `files` files like those found in use, which is not made.
    pub(super) fn generated(files: u64, seed: u64) -> Result<Shape, Failure> {
        let tree = Tree::new(Tree::usual_dirs(files)?, files, seed);
        let mut shape = Shape::new();
        for dir in 0..tree.dirs() {
            let files = tree.files_of(dir);
            // No more directories than fit into 32 bits.
            let parent = (dir > 0).then(|| tree.parent(dir) as u32);
            shape.add(parent, files.end - files.start)?;
        }
        Ok(shape)
    }

    /// The shape of what was dumped by `varve dump` (docs/format/dump.md); `-` is the standard input.
    pub(super) fn of_dump(path: &Path) -> Result<Shape, Failure> {
        let read = || match path == Path::new("-") {
            true => Shape::of_lines(&mut io::stdin().lock()),
            false => Shape::of_lines(&mut BufReader::new(File::open(path)?)),
        };
        read().map_err(|error| format!("{}: {error}", path.display()).into())
    }

    /// The shape of the tree that a trace tells of. Directories whose parent it does not name are put into one that is made for them, if there
    /// are several (4.5.1).
    pub(super) fn of_trace(path: &Path) -> Result<Shape, Failure> {
        let mut tree = varve_trace::Tree::new();
        for_each_record(path, &mut |record| {
            tree.learn(record);
            Ok(())
        })?;
        let mut dirs = tree.directories();
        // The order of a hash table is another each time.
        dirs.sort_unstable_by_key(|dir| dir.object);
        let roots: Vec<u64> =
            dirs.iter().filter(|dir| dir.parent.is_none()).map(|dir| dir.object).collect();
        let above = match roots[..] {
            [root] => root,
            _ => u64::MAX,
        };
        let inodes = dirs.iter().map(|dir| (dir.object, dir.parent.unwrap_or(above), dir.files));
        let made = (roots.len() != 1).then_some((above, above, 0));
        Shape::of_inodes(&inodes.chain(made).collect::<Vec<_>>())
            .map_err(|error| format!("{}: {error}", path.display()).into())
    }

    fn of_lines(lines: &mut dyn BufRead) -> Result<Shape, Failure> {
        let mut read = Vec::new();
        let (mut line, mut number, mut is_whole) = (Vec::new(), 0_u64, false);
        while lines.read_until(b'\n', &mut line)? > 0 {
            number += 1;
            let parsed = |error| format!("line {number}: {error}");
            if number == 1 && !line.starts_with(b"{\"varve_dump\"") {
                return Err("this is no dump: its first line does not say varve_dump".into());
            }
            if line.starts_with(b"{\"inode\"") {
                let Line { inode } = serde_json::from_slice(&line).map_err(parsed)?;
                if let Some(dir) = inode.dir {
                    read.push((inode.ino, inode.parent, dir.entries.saturating_sub(dir.subdirs)));
                }
            }
            is_whole = line.starts_with(b"{\"end\"");
            line.clear();
        }
        if !is_whole {
            return Err("this is no whole dump: its last line does not say end".into());
        }
        Shape::of_inodes(&read)
    }

    /// The shape of directories in any order, each with its number, its parent's and how many files it holds.
    fn of_inodes(read: &[(u64, u64, u64)]) -> Result<Shape, Failure> {
        let mut below: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
        let mut root = None;
        for (ino, parent, files) in read {
            match ino == parent {
                true => root = Some((*ino, *files)),
                false => below.entry(*parent).or_default().push((*ino, *files)),
            }
        }
        let (root, files) =
            root.ok_or("no directory in it is its own parent, so it has no root")?;
        let mut shape = Shape::new();
        let mut waiting = vec![(root, shape.add(None, files)?)];
        while let Some((ino, at)) = waiting.pop() {
            for (child, files) in below.remove(&ino).unwrap_or_default() {
                waiting.push((child, shape.add(Some(at), files)?));
            }
        }
        match shape.dirs.len() == read.len() {
            true => Ok(shape),
            false => {
                let lost = read.len() - shape.dirs.len();
                Err(format!("{lost} directories in it are not below its root").into())
            }
        }
    }
}

/// A line of a dump, as far as it says what a directory holds.
#[derive(Deserialize)]
struct Line {
    inode: InodeLine,
}

#[derive(Deserialize)]
struct InodeLine {
    ino: u64,
    #[serde(default = "of_the_root")]
    parent: u64,
    dir: Option<DirLine>,
}

#[derive(Deserialize)]
struct DirLine {
    #[serde(default)]
    entries: u64,
    #[serde(default)]
    subdirs: u64,
}

fn of_the_root() -> u64 {
    1
}

/// The shape of a tree, while it is walked over.
struct Found {
    shape: Shape,
    failed: Option<Failure>,
}

impl Visitor for Found {
    /// Its place.
    type Dir = u32;

    fn dir(&mut self, parent: Option<&u32>) -> u32 {
        self.shape.add(parent.copied(), 0).unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            0
        })
    }

    fn file(&mut self, dir: &u32, _: &Metadata) {
        self.shape.dirs[*dir as usize].files += 1;
    }

    fn end(&mut self, _: &u32, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(parent: u32, rank: u32, dirs: u32, depth: u32, files: u64) -> Dir {
        Dir { parent, rank, dirs, depth, files }
    }

    #[test]
    fn a_tree_and_a_dump_of_it_have_one_shape() {
        let root = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir_all(root.path().join("a/b")).expect("directories");
        for name in ["x", "a/y", "a/b/z"] {
            std::fs::write(root.path().join(name), "").expect("file");
        }
        std::os::unix::fs::symlink("x", root.path().join("a/link")).expect("link");
        let shape = Shape::of_tree(root.path()).expect("shape");
        assert_eq!(shape.dirs, [dir(0, 0, 1, 0, 1), dir(0, 1, 1, 1, 2), dir(1, 1, 0, 2, 1)]);
        // b has been moved into a directory that is younger.
        let dump = "{\"varve_dump\":{\"version\":1}}\n\
            {\"inode\":{\"ino\":1,\"kind\":\"directory\",\"parent\":1,\"dir\":{\"entries\":2,\"subdirs\":1}}}\n\
            {\"inode\":{\"ino\":4,\"kind\":\"directory\",\"parent\":7,\"dir\":{\"entries\":1}}}\n\
            {\"inode\":{\"ino\":5,\"kind\":\"regular\",\"parent\":4}}\n\
            {\"inode\":{\"ino\":7,\"kind\":\"directory\",\"parent\":1,\"dir\":{\"entries\":3,\"subdirs\":1}}}\n\
            {\"end\":{}}\n";
        assert_eq!(Shape::of_lines(&mut dump.as_bytes()).expect("shape"), shape);
    }

    #[test]
    fn what_is_no_dump_is_refused_by_what_is_wrong() {
        let error =
            |text: &str| Shape::of_lines(&mut text.as_bytes()).expect_err("refused").to_string();
        assert!(error("hello\n").contains("no dump"));
        assert!(
            error("{\"varve_dump\":{}}\n{\"inode\":{}}\n").starts_with("line 2: missing field")
        );
        assert!(error("{\"varve_dump\":{}}\n").contains("no whole dump"));
        assert!(error("{\"varve_dump\":{}}\n{\"end\":{}}\n").contains("no root"));
        let ring = "{\"varve_dump\":{}}\n{\"inode\":{\"ino\":1,\"dir\":{}}}\n\
            {\"inode\":{\"ino\":2,\"parent\":3,\"dir\":{}}}\n{\"inode\":{\"ino\":3,\"parent\":2,\"dir\":{}}}\n{\"end\":{}}\n";
        assert!(
            error(ring).contains("2 directories in it are not below its root"),
            "{}",
            error(ring)
        );
    }
}
