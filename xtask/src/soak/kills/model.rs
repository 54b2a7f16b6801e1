//! What a writer does, step by step, and what its part of the tree then holds.
//!
//! A [`Model`] begins empty with a seed. [`Model::next`] chooses the next step from the seed and from what
//! there is, so that it can succeed; [`Model::apply`] does it to the model. The writer does the same steps to
//! the file system; the checker needs nothing but the seed and how many of them were acknowledged.
//!
//! Every step is one system call or ends with one that is told, so that a step is acknowledged or not.

use std::collections::BTreeMap;

use crate::random::Random;

/// Files and directories of one writer.
const NODES_MAX: usize = 60;

/// Bytes of a file: beyond the 64 KiB at which it moves to a file of its own below.
const FILE_BYTES_MAX: u64 = 300_000;

/// Where a writer's paths begin: in a directory of its own or in one that all share.
const PLACES: &[&str] = &["own", "shared"];

/// One step of a writer. Paths are relative and begin with one of [`PLACES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create { path: String, mode: u32 },
    Write { path: String, offset: u64, bytes: Bytes },
    Append { path: String, bytes: Bytes },
    Truncate { path: String, size: u64 },
    Chmod { path: String, mode: u32 },
    SetXattr { path: String, value: String },
    Rename { from: String, to: String },
    Link { from: String, to: String },
    Unlink { path: String },
    Symlink { path: String, target: String },
    MakeDir { path: String },
    RemoveDir { path: String },
    Sync { path: String },
}

/// Bytes that a seed makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) seed: u64,
    pub(super) len: u64,
}

impl Bytes {
    pub(super) fn make(&self) -> Vec<u8> {
        let mut random = Random::new(self.seed);
        (0..self.len).map(|_| random.next() as u8).collect()
    }
}

/// A regular file; its names share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
    pub(super) xattr: Option<String>,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(u64),
    Symlink(String),
    Dir,
}

/// A writer's part of the tree.
#[derive(Clone, Debug)]
pub(super) struct Model {
    /// Every name by its path.
    pub(super) names: BTreeMap<String, Node>,
    /// Every file by its number, those without a name left too.
    pub(super) files: BTreeMap<u64, File>,
    random: Random,
    next_file: u64,
}

impl Model {
    pub(super) fn new(seed: u64) -> Model {
        let random = Random::new(seed);
        Model { names: BTreeMap::new(), files: BTreeMap::new(), random, next_file: 0 }
    }

    /// The model after `steps` steps, and the step after them.
    pub(super) fn after(seed: u64, steps: u64) -> (Model, Step) {
        let mut model = Model::new(seed);
        for _ in 0..steps {
            let step = model.next();
            model.apply(&step);
        }
        let mut ahead = model.clone();
        let step = ahead.next();
        (model, step)
    }

    /// Chooses the next step.
    pub(super) fn next(&mut self) -> Step {
        let file = self.pick(|node| matches!(node, Node::File(_)));
        let Some(path) = file.filter(|_| self.random.below(10) > 0) else {
            return self.make();
        };
        match self.random.below(14) {
            0 | 1 if self.names.len() < NODES_MAX => self.make(),
            0..=3 => {
                let (offset, bytes) = (self.random.below(FILE_BYTES_MAX / 2), self.bytes());
                Step::Write { path, offset, bytes }
            }
            4 | 5 => Step::Append { path, bytes: self.bytes() },
            6 | 7 => Step::Truncate { path, size: self.random.below(FILE_BYTES_MAX) },
            8 => Step::Chmod { path, mode: self.mode() },
            9 => Step::SetXattr { path, value: format!("{:x}", self.random.next()) },
            10 => Step::Sync { path },
            11 => {
                let old = self.pick(|node| matches!(node, Node::File(_)));
                let to = old.filter(|old| *old != path).unwrap_or_else(|| self.new_path());
                Step::Rename { from: path, to }
            }
            12 => Step::Link { from: path, to: self.new_path() },
            _ => self.remove(path),
        }
    }

    fn make(&mut self) -> Step {
        let path = self.new_path();
        match self.random.below(6) {
            0 => Step::MakeDir { path },
            1 => Step::Symlink { path, target: format!("target-{:x}", self.random.next()) },
            // Bits that no umask takes.
            _ => Step::Create { path, mode: 0o600 | self.mode() & 0o100 },
        }
    }

    fn remove(&mut self, file: String) -> Step {
        let is_empty = |model: &Model, dir: &str| {
            let prefix = format!("{dir}/");
            !model.names.keys().any(|path| path.starts_with(&prefix))
        };
        match self.pick(|node| matches!(node, Node::Dir)) {
            Some(dir) if self.random.below(3) == 0 && is_empty(self, &dir) => {
                Step::RemoveDir { path: dir }
            }
            _ => Step::Unlink { path: file },
        }
    }

    fn mode(&mut self) -> u32 {
        0o600 | self.random.below(0o200) as u32
    }

    fn bytes(&mut self) -> Bytes {
        let len = match self.random.below(4) {
            0 => 1 + self.random.below(100),
            1 => 1 + self.random.below(2000),
            2 => 1 + self.random.below(20_000),
            _ => 1 + self.random.below(FILE_BYTES_MAX / 2),
        };
        Bytes { seed: self.random.next(), len }
    }

    /// A path that nothing has yet, in one of the places or in a directory there.
    fn new_path(&mut self) -> String {
        let parent = match self.random.below(3) {
            0 => self.pick(|node| matches!(node, Node::Dir)),
            _ => None,
        };
        let parent = parent
            .unwrap_or_else(|| PLACES[self.random.below(PLACES.len() as u64) as usize].to_owned());
        let tail = if self.random.below(8) == 0 { "x".repeat(150) } else { String::new() };
        format!("{parent}/{:x}{tail}", self.random.next())
    }

    fn pick(&mut self, is_wanted: impl Fn(&Node) -> bool) -> Option<String> {
        let wanted: Vec<_> = self.names.iter().filter(|(_, node)| is_wanted(node)).collect();
        if wanted.is_empty() {
            return None;
        }
        let at = self.random.below(wanted.len() as u64) as usize;
        wanted.get(at).map(|(path, _)| (*path).clone())
    }

    /// The file behind a name.
    pub(super) fn file(&self, path: &str) -> Option<&File> {
        match self.names.get(path)? {
            Node::File(number) => self.files.get(number),
            _ => None,
        }
    }

    fn change(&mut self, path: &str, change: impl FnOnce(&mut File)) {
        if let Some(Node::File(number)) = self.names.get(path)
            && let Some(file) = self.files.get_mut(number)
        {
            change(file);
        }
    }

    /// Does a step.
    pub(super) fn apply(&mut self, step: &Step) {
        match step {
            Step::Create { path, mode } => {
                let file = File { bytes: Vec::new(), mode: *mode, xattr: None };
                self.files.insert(self.next_file, file);
                self.names.insert(path.clone(), Node::File(self.next_file));
                self.next_file += 1;
            }
            Step::Write { path, offset, bytes } => {
                self.change(path, |file| overwrite(&mut file.bytes, *offset, &bytes.make()));
            }
            Step::Append { path, bytes } => {
                self.change(path, |file| file.bytes.extend(bytes.make()));
            }
            Step::Truncate { path, size } => {
                self.change(path, |file| file.bytes.resize(*size as usize, 0));
            }
            Step::Chmod { path, mode } => self.change(path, |file| file.mode = *mode),
            Step::SetXattr { path, value } => {
                self.change(path, |file| file.xattr = Some(value.clone()));
            }
            Step::Rename { from, to } => {
                // Two names of one file: rename does nothing.
                if self.names.get(from) != self.names.get(to)
                    && let Some(node) = self.names.remove(from)
                {
                    self.names.insert(to.clone(), node);
                }
            }
            Step::Link { from, to } => {
                if let Some(node) = self.names.get(from).cloned() {
                    self.names.insert(to.clone(), node);
                }
            }
            Step::Unlink { path } | Step::RemoveDir { path } => drop(self.names.remove(path)),
            Step::Symlink { path, target } => {
                self.names.insert(path.clone(), Node::Symlink(target.clone()));
            }
            Step::MakeDir { path } => drop(self.names.insert(path.clone(), Node::Dir)),
            Step::Sync { .. } => {}
        }
    }
}

fn overwrite(bytes: &mut Vec<u8>, offset: u64, new: &[u8]) {
    let (begin, end) = (offset as usize, offset as usize + new.len());
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[begin..end].copy_from_slice(new);
}
