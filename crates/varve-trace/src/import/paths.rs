//! Gives numbers to the objects of logs that name them by paths.

use std::collections::HashMap;

use crate::record::{Op, Record};

/// The root's number.
const ROOT: u64 = 1;

/// A namespace: the number of each object by the number of its directory and its name.
pub(super) struct Paths {
    names: HashMap<(u64, Box<str>), u64>,
    next: u64,
    /// Directories that were not known before, as records.
    found: Vec<Record>,
}

impl Default for Paths {
    fn default() -> Paths {
        Paths { names: HashMap::new(), next: ROOT + 1, found: Vec::new() }
    }
}

/// Returns the names of a path, without empty ones and `.`; `..` removes the name before it.
fn names(path: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            _ => names.push(name),
        }
    }
    names
}

impl Paths {
    fn child(&mut self, dir: u64, name: &str) -> u64 {
        let next = self.next;
        let object = *self.names.entry((dir, name.into())).or_insert(next);
        self.next += u64::from(object == next);
        object
    }

    /// Returns the number of the directory `name` in `dir`.
    fn directory(&mut self, dir: u64, name: &str) -> u64 {
        let next = self.next;
        let object = self.child(dir, name);
        if object == next {
            self.found.push(Record {
                object: Some(object),
                dir: Some(dir),
                name: name.into(),
                is_dir: true,
                ..Record::new(0, 0, Op::Known)
            });
        }
        object
    }

    /// Appends `record`, after the directories that its paths name for the first time.
    pub(super) fn put(&mut self, record: Record, records: &mut Vec<Record>) {
        let at_us = record.at_us;
        records.extend(self.found.drain(..).map(|found| Record { at_us, ..found }));
        records.push(record);
    }

    /// Returns the directory of a path and its last name; the root has none.
    fn place<'a>(&mut self, path: &'a str) -> (u64, Option<&'a str>) {
        let names = names(path);
        let Some((last, above)) = names.split_last() else { return (ROOT, None) };
        (above.iter().fold(ROOT, |dir, name| self.directory(dir, name)), Some(*last))
    }

    /// Sets the object of `record` from its path.
    pub(super) fn name(&mut self, record: &mut Record, path: &str) {
        match self.place(path) {
            (root, None) => record.object = Some(root),
            (dir, Some(name)) => {
                record.object = Some(self.child(dir, name));
                record.dir = Some(dir);
                record.name = name.into();
            }
        }
    }

    /// Notes that the object of a path was removed: from now on the path has a new number.
    pub(super) fn remove(&mut self, path: &str) {
        if let (dir, Some(name)) = self.place(path) {
            self.names.remove(&(dir, name.into()));
        }
    }

    /// Sets the new name in `record`. A successful rename moves the number there.
    pub(super) fn name_again(&mut self, record: &mut Record, path: &str) {
        let (dir, Some(name)) = self.place(path) else { return };
        record.new_dir = Some(dir);
        record.new_name = name.into();
    }

    /// Moves the object of `record`, a successful rename from the path `old`, to its new name.
    pub(super) fn moved(&mut self, record: &Record, old: &str) {
        self.remove(old);
        if let (Some(object), Some(dir)) = (record.object, record.new_dir) {
            let name = String::from_utf8_lossy(&record.new_name).into_owned();
            self.names.insert((dir, name.into()), object);
        }
    }

    /// Notes that the path is another name of the object.
    pub(super) fn linked(&mut self, object: u64, path: &str) {
        if let (dir, Some(name)) = self.place(path) {
            self.names.insert((dir, name.into()), object);
        }
    }
}
