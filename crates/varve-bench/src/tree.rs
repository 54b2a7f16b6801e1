//! A namespace like those that were found in use (Ren, thesis, chapter 3.2), without a list of its files.
//!
//! - **Depth.** Each new directory chooses its parent with a chance in proportion to the parent's subdirectories
//!   plus 2: the generative model of the Impressions tool that the thesis uses (4.3.4). The mean depth grows as
//!   two thirds of the logarithm of the number of directories, as figure 3.4 asks: 8.0 for the 172,252 of 4.3.4,
//!   half of them below depth 9 and nearly all below 16 (figure 3.3).
//! - **Sizes of directories.** Files are spread by a power law (Zipf, exponent 1): most directories have a
//!   few, and the largest grows almost linearly with the whole (figures 3.1, 3.2).
//! - **Sizes of files.** Log-normal with a median of 13 KiB and a sigma of 2.46, the defaults of
//!   Impressions: most files are small, most bytes are in few (figure 3.1).
//!
//! Directories are numbered depth first, so that each comes after its parent. Memory: 12 bytes per directory.

use crate::Failure;
use crate::random::{Random, Shuffle, mix};

/// Files of a directory, on average, where nobody says how many directories there are.
const FILES_PER_DIR: u64 = 11;

/// The logarithm's standard deviation of file sizes.
const SIZE_SIGMA: f64 = 2.46;

/// Directories, and how many files each has.
pub(crate) struct Tree {
    /// The parent of each; the root's is itself.
    parents: Vec<u32>,
    /// The number of each one's first file, and last the number of files.
    first_files: Vec<u64>,
}

impl Tree {
    /// How many directories a namespace of `files` files has, unless somebody says so.
    pub(crate) fn usual_dirs(files: u64) -> Result<u32, Failure> {
        let dirs = u32::try_from(files / FILES_PER_DIR);
        Ok(dirs.map_err(|_| format!("{files} files are more than a tree can have"))?)
    }

    /// A namespace of `dirs` directories, the root among them, and `files` files.
    pub(crate) fn new(dirs: u32, files: u64, seed: u64) -> Tree {
        let dirs = dirs.max(1);
        let parents = depth_first(&grow(dirs, seed));
        let harmonic: f64 = (1..=u64::from(dirs)).map(|rank| 1.0 / rank as f64).sum();
        let ranks = Shuffle::new(u64::from(dirs), seed);
        let mut first_files = Vec::with_capacity(dirs as usize + 1);
        let mut share = 0.0;
        for dir in 0..u64::from(dirs) {
            first_files.push(((share / harmonic * files as f64) as u64).min(files));
            share += 1.0 / (ranks.at(dir) + 1) as f64;
        }
        first_files.push(files);
        Tree { parents, first_files }
    }

    /// How many directories there are.
    pub(crate) fn dirs(&self) -> u64 {
        self.parents.len() as u64
    }

    /// How many files there are.
    pub(crate) fn files(&self) -> u64 {
        self.first_files.last().copied().unwrap_or(0)
    }

    /// The parent of a directory; the root's is itself.
    pub(crate) fn parent(&self, dir: u64) -> u64 {
        u64::from(self.parents[dir as usize])
    }

    /// The path of a directory.
    pub(crate) fn dir(&self, dir: u64) -> String {
        let mut names = Vec::new();
        let mut at = dir as usize;
        while at != 0 {
            names.push(at);
            at = self.parents.get(at).map_or(0, |parent| *parent as usize);
        }
        if names.is_empty() {
            return ".".to_owned();
        }
        let names: Vec<String> = names.iter().rev().map(|name| format!("d{name}")).collect();
        names.join("/")
    }

    /// The files of a directory.
    pub(crate) fn files_of(&self, dir: u64) -> std::ops::Range<u64> {
        self.first_files[dir as usize]..self.first_files[dir as usize + 1]
    }

    /// The directory that holds a file.
    pub(crate) fn dir_of(&self, file: u64) -> u64 {
        self.first_files.partition_point(|first| *first <= file) as u64 - 1
    }

    /// The path of a file.
    pub(crate) fn file(&self, file: u64) -> String {
        format!("{}/f{file}", self.dir(self.dir_of(file)))
    }

    /// Names in each directory: its files and its subdirectories.
    pub(crate) fn names(&self) -> Vec<u64> {
        let ends = self.first_files.iter().skip(1);
        let mut names: Vec<u64> =
            self.first_files.iter().zip(ends).map(|(first, end)| end - first).collect();
        for parent in self.parents.iter().skip(1) {
            names[*parent as usize] += 1;
        }
        names
    }
}

/// Parents by preferential attachment, in the order in which directories come up.
fn grow(dirs: u32, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut parents = vec![0_u32];
    for dir in 1..u64::from(dirs) {
        // The weights are 2 for each directory and 1 for each subdirectory, which all but the root are.
        let at = random.below(2 * dir + dir - 1);
        let parent = match at.checked_sub(2 * dir) {
            Some(subdirectory) => parents[subdirectory as usize + 1],
            None => (at / 2) as u32,
        };
        parents.push(parent);
    }
    parents
}

/// The same tree with its directories numbered depth first.
fn depth_first(parents: &[u32]) -> Vec<u32> {
    let count = parents.len();
    // A list of the subdirectories of each, by its first one and each one's next one; 0 ends it.
    let (mut first, mut next) = (vec![0_u32; count], vec![0_u32; count]);
    for (dir, parent) in parents.iter().enumerate().skip(1).rev() {
        next[dir] = first[*parent as usize];
        first[*parent as usize] = dir as u32;
    }
    let mut numbered = vec![0_u32; count];
    let mut number = 0_u32;
    // What is still to be visited, each with its parent's new number.
    let mut stack = vec![(0_u32, 0_u32)];
    while let Some((dir, parent)) = stack.pop() {
        numbered[number as usize] = parent;
        if dir != 0 && next[dir as usize] != 0 {
            stack.push((next[dir as usize], parent));
        }
        if first[dir as usize] != 0 {
            stack.push((first[dir as usize], number));
        }
        number += 1;
    }
    numbered
}

/// The size of a file, in bytes, at most `max`.
pub(crate) fn file_bytes(file: u64, median: u64, max: u64) -> u64 {
    let mut random = Random::new(mix(file ^ 0x7369_7a65));
    let size = median as f64 * (SIZE_SIGMA * random.normal()).exp();
    (size as u64).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(tree: &Tree, dir: u64) -> usize {
        if dir == 0 { 0 } else { tree.dir(dir).split('/').count() }
    }

    #[test]
    fn depths_are_those_of_the_thesis() {
        let tree = Tree::new(172_252, 1_900_000, 1);
        let mut depths: Vec<usize> = (0..tree.dirs()).map(|dir| depth(&tree, dir)).collect();
        let mean = depths.iter().sum::<usize>() as f64 / depths.len() as f64;
        depths.sort_unstable();
        let at = |share: f64| depths[(depths.len() as f64 * share) as usize];
        assert!((7.0..9.5).contains(&mean), "{mean}");
        assert!(at(0.5) < 9 + 1 && at(0.9) < 16, "{} {}", at(0.5), at(0.9));
    }

    #[test]
    fn directories_are_skewed_and_their_largest_grows_with_the_tree() {
        let largest = |dirs: u32| {
            let mut names = Tree::new(dirs, u64::from(dirs) * 11, 1).names();
            names.sort_unstable();
            assert!(names[names.len() / 2] < 11, "the median is below the mean");
            assert!(names[names.len() * 9 / 10] < 128);
            names[names.len() - 1] as f64
        };
        let growth = largest(40_000) / largest(4_000);
        assert!((5.0..=10.0).contains(&growth), "{growth}");
    }

    #[test]
    fn files_lie_in_their_directories() {
        let tree = Tree::new(50, 1000, 3);
        let mut names = vec![0; 50];
        for file in 0..1000 {
            let dir = tree.dir_of(file);
            assert!(tree.file(file).starts_with(&tree.dir(dir)));
            names[dir as usize] += 1;
        }
        for dir in 1..50 {
            assert!(tree.parents[dir] < dir as u32, "parents come first");
            names[tree.parents[dir] as usize] += 1;
        }
        assert_eq!(names, tree.names());
        assert_eq!((tree.files(), tree.dir(0).as_str()), (1000, "."));
    }

    #[test]
    fn file_sizes_have_their_median() {
        let mut sizes: Vec<u64> =
            (0..20_001).map(|file| file_bytes(file, 13_000, 1 << 40)).collect();
        sizes.sort_unstable();
        assert!((11_500..14_500).contains(&sizes[10_000]), "{}", sizes[10_000]);
        assert!(sizes[20_000] > 10 << 20 && file_bytes(1, 1 << 30, 5) <= 5);
    }
}
