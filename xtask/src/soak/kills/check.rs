//! Compares what a writer's steps must have left with what is there.
//!
//! All acknowledged steps must be there, whole, and nothing else. The step after them was under way when the
//! daemon died: it may be there or not, but in between only for a write, where each byte is the old or the
//! new one. Whatever was found of it stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::model::{Model, Node, Step};
use super::writer::{Hands, XATTR};
use crate::run::{Failure, Outcome};

/// The writer's part of the tree under `dir` must be that of `model`, with or without `under_way`. Returns
/// what is there.
pub(super) fn check(
    dir: &Path,
    number: u64,
    model: &Model,
    under_way: &Step,
) -> Result<Found, Failure> {
    let found = Found::read(dir, number)?;
    let without = found.compare(model, None);
    let Err(without) = without else { return Ok(found) };
    let mut with = model.clone();
    with.apply(under_way);
    let written = match under_way {
        Step::Write { path, .. } | Step::Append { path, .. } | Step::Truncate { path, .. } => {
            Some((path.as_str(), model))
        }
        _ => None,
    };
    let Err(with) = found.compare(&with, written) else { return Ok(found) };
    Err(format!("{without}\nand with the step under way ({under_way:?}): {with}").into())
}

/// What is there.
pub(super) struct Found {
    names: BTreeMap<String, Entry>,
}

/// What a name stands for; files by inode number.
#[derive(PartialEq, Eq, Debug)]
enum Entry {
    File { ino: u64, links: u64, mode: u32, bytes: Vec<u8>, xattr: Option<String> },
    Symlink(String),
    Dir,
}

impl Found {
    fn read(dir: &Path, number: u64) -> Result<Found, Failure> {
        let hands = Hands::new(dir, number);
        let mut names = BTreeMap::new();
        for entry in fs::read_dir(dir.join("shared"))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Some((writer, rest)) = name.split_once('-')
                && writer == number.to_string()
            {
                read_into(&hands, &format!("shared/{rest}"), &mut names)?;
            }
        }
        for entry in fs::read_dir(hands.place("own"))? {
            let name = entry?.file_name();
            read_into(&hands, &format!("own/{}", name.to_string_lossy()), &mut names)?;
        }
        Ok(Found { names })
    }

    /// The writer's part of the tree must still be this.
    pub(super) fn check_again(&self, dir: &Path, number: u64) -> Outcome {
        let now = Found::read(dir, number)?;
        let mut paths = self.names.keys().chain(now.names.keys());
        match paths.find(|path| self.names.get(*path) != now.names.get(*path)) {
            Some(path) => {
                let what = changed(self.names.get(path), now.names.get(path));
                Err(format!("{path} is not what it was after an earlier kill: {what}").into())
            }
            None => Ok(()),
        }
    }

    /// Bytes of the file `written` are also right where they are those of the model beside it.
    fn compare(&self, model: &Model, written: Option<(&str, &Model)>) -> Outcome {
        let wanted: BTreeSet<_> = model.names.keys().collect();
        let found: BTreeSet<_> = self.names.keys().collect();
        if let Some(lost) = wanted.difference(&found).next() {
            return Err(format!("{lost} is lost").into());
        }
        if let Some(other) = found.difference(&wanted).next() {
            return Err(format!("{other} is there and should not be").into());
        }
        let mut inos: BTreeMap<u64, u64> = BTreeMap::new();
        for (path, node) in &model.names {
            let same = match (node, &self.names[path]) {
                (Node::Dir, Entry::Dir) => Ok(()),
                (Node::Symlink(wanted), Entry::Symlink(found)) if wanted == found => Ok(()),
                (Node::File(number), Entry::File { ino, .. }) => {
                    let other = inos.insert(*number, *ino).is_some_and(|other| other != *ino);
                    if other { Err("its names are two files".into()) } else { Ok(()) }
                }
                _ => Err(Failure::from("it is something else")),
            };
            same.and_then(|()| self.compare_file(path, model, written))
                .map_err(|error| format!("{path}: {error}"))?;
        }
        Ok(())
    }

    fn compare_file(&self, path: &str, model: &Model, written: Option<(&str, &Model)>) -> Outcome {
        let (Some(wanted), Some(Entry::File { links, mode, bytes, xattr, .. })) =
            (model.file(path), self.names.get(path))
        else {
            return Ok(());
        };
        let names =
            model.names.values().filter(|node| Some(*node) == model.names.get(path)).count();
        if *links != names as u64 {
            return Err(format!("{links} links, {names} names").into());
        }
        if mode & 0o7777 != wanted.mode {
            return Err(format!("mode {:o}, not {:o}", mode & 0o7777, wanted.mode).into());
        }
        if *xattr != wanted.xattr {
            return Err(format!("attribute {xattr:?}, not {:?}", wanted.xattr).into());
        }
        if *bytes == wanted.bytes {
            return Ok(());
        }
        let old = written.and_then(|(written, old)| {
            let is_it = model.names.get(written) == model.names.get(path);
            old.file(written).filter(|_| is_it)
        });
        match old {
            Some(old) if is_between(&old.bytes, &wanted.bytes, bytes) => Ok(()),
            _ => Err(difference(&wanted.bytes, bytes).into()),
        }
    }
}

/// Whether each byte is the old one or the new one, and zero at most where a hole grew.
fn is_between(old: &[u8], new: &[u8], found: &[u8]) -> bool {
    let (least, most) = (old.len().min(new.len()), old.len().max(new.len()));
    (least..=most).contains(&found.len())
        && found.iter().enumerate().all(|(at, byte)| {
            let is = |bytes: &[u8]| bytes.get(at) == Some(byte);
            is(old) || is(new) || (at >= old.len() && *byte == 0)
        })
}

fn difference(wanted: &[u8], found: &[u8]) -> String {
    let differs: Vec<usize> =
        (0..wanted.len().min(found.len())).filter(|at| wanted[*at] != found[*at]).collect();
    let at = match (differs.first(), differs.last()) {
        (Some(first), Some(last)) => {
            format!("{} bytes from {first} to {last} differ", differs.len())
        }
        _ => "no byte differs".to_owned(),
    };
    format!("{} bytes, {} wanted; {at}", found.len(), wanted.len())
}

/// How an entry differs from what it was.
fn changed(before: Option<&Entry>, now: Option<&Entry>) -> String {
    match (before, now) {
        (Some(Entry::File { bytes: before, .. }), Some(Entry::File { bytes: now, .. }))
            if before != now =>
        {
            difference(before, now)
        }
        _ => format!("{now:?}, was {before:?}"),
    }
}

fn read_into(hands: &Hands, path: &str, names: &mut BTreeMap<String, Entry>) -> Outcome {
    let place = hands.place(path);
    let meta = fs::symlink_metadata(&place)?;
    let entry = if meta.is_symlink() {
        Entry::Symlink(fs::read_link(&place)?.to_string_lossy().into_owned())
    } else if meta.is_dir() {
        for entry in fs::read_dir(&place)? {
            let name = entry?.file_name();
            read_into(hands, &format!("{path}/{}", name.to_string_lossy()), names)?;
        }
        Entry::Dir
    } else {
        let mut value = vec![0; 100];
        let xattr = match rustix::fs::getxattr(&place, XATTR, &mut value) {
            Ok(len) => Some(String::from_utf8_lossy(&value[..len]).into_owned()),
            Err(rustix::io::Errno::NODATA) => None,
            Err(error) => return Err(error.into()),
        };
        let (ino, links) = (meta.ino(), meta.nlink());
        let mode = meta.permissions().mode();
        Entry::File { ino, links, mode, bytes: fs::read(&place)?, xattr }
    };
    names.insert(path.to_owned(), entry);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const STEPS: u64 = 250;

    /// A directory after the steps of one writer.
    fn written(seed: u64) -> (tempfile::TempDir, Model, Step) {
        let dir = tempfile::tempdir().unwrap();
        super::super::make_places(dir.path(), 1).unwrap();
        let mut hands = Hands::new(dir.path(), 0);
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            let step = model.next();
            hands.perform(&step).unwrap();
            model.apply(&step);
        }
        let (again, under_way) = Model::after(seed, STEPS);
        assert_eq!(again.names, model.names);
        (dir, model, under_way)
    }

    #[test]
    fn steps_leave_what_the_model_says_with_and_without_the_next_one() {
        for seed in 1..20 {
            let (dir, model, under_way) = written(seed);
            check(dir.path(), 0, &model, &under_way).unwrap();
            Hands::new(dir.path(), 0).perform(&under_way).unwrap();
            check(dir.path(), 0, &model, &under_way).unwrap();
        }
    }

    /// With the step under way and without it are both right, once.
    #[test]
    fn what_was_found_must_stay() {
        for seed in 1..20 {
            let (dir, model, under_way) = written(seed);
            let found = check(dir.path(), 0, &model, &under_way).unwrap();
            found.check_again(dir.path(), 0).unwrap();
            Hands::new(dir.path(), 0).perform(&under_way).unwrap();
            let stays = check(dir.path(), 0, &model, &under_way).unwrap();
            stays.check_again(dir.path(), 0).unwrap();
            let is_sync = matches!(under_way, Step::Sync { .. });
            assert_eq!(found.check_again(dir.path(), 0).is_ok(), is_sync, "{under_way:?}");
        }
    }

    /// The canary: whatever is lost or changed must be noticed.
    #[test]
    fn any_loss_is_noticed() {
        let (dir, model, _) = written(7);
        let hands = Hands::new(dir.path(), 0);
        let under_way = Step::Sync { path: String::new() };
        check(dir.path(), 0, &model, &under_way).unwrap();
        let is_full = |path: &String| model.file(path).is_some_and(|file| !file.bytes.is_empty());
        let path = model.names.keys().find(|path| is_full(path)).unwrap();
        let place = hands.place(path);
        let bytes = fs::read(&place).unwrap();

        let mut other = bytes.clone();
        other[bytes.len() / 2] ^= 1;
        fs::write(&place, &other).unwrap();
        assert!(check(dir.path(), 0, &model, &under_way).is_err());
        fs::write(&place, &bytes[..bytes.len() - 1]).unwrap();
        assert!(check(dir.path(), 0, &model, &under_way).is_err());
        fs::write(&place, &bytes).unwrap();
        check(dir.path(), 0, &model, &under_way).unwrap();

        fs::hard_link(&place, hands.place("shared/extra")).unwrap();
        assert!(check(dir.path(), 0, &model, &under_way).is_err());
        fs::remove_file(hands.place("shared/extra")).unwrap();
        let mut file = fs::File::create_new(hands.place("own/new")).unwrap();
        file.write_all(b"x").unwrap();
        assert!(check(dir.path(), 0, &model, &under_way).is_err());
        fs::remove_file(hands.place("own/new")).unwrap();
        fs::remove_file(&place).unwrap();
        assert!(check(dir.path(), 0, &model, &under_way).is_err());
    }
}
