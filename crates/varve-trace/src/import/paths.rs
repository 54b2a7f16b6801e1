//! Numbers for the objects of logs that name them by paths.

use std::collections::HashMap;

use crate::record::{Op, Record};

/// The root's number.
const ROOT: u64 = 1;

/// A namespace: each object's number by its directory's and its name.
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

/// The names of a path, without those that go nowhere; `..` goes up.
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

    /// The directory `name` in `dir`.
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

    /// Appends `record`, and before it the directories that its paths were the first to name.
    pub(super) fn put(&mut self, record: Record, records: &mut Vec<Record>) {
        let at_us = record.at_us;
        records.extend(self.found.drain(..).map(|found| Record { at_us, ..found }));
        records.push(record);
    }

    /// The directory of a path and its last name there; the root has none.
    fn place<'a>(&mut self, path: &'a str) -> (u64, Option<&'a str>) {
        let names = names(path);
        let Some((last, above)) = names.split_last() else { return (ROOT, None) };
        (above.iter().fold(ROOT, |dir, name| self.directory(dir, name)), Some(*last))
    }

    /// Says in `record` which object has the path.
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

    /// The object of a path has a new number from now on: it was removed.
    pub(super) fn remove(&mut self, path: &str) {
        if let (dir, Some(name)) = self.place(path) {
            self.names.remove(&(dir, name.into()));
        }
    }

    /// Says in `record` where its object's new name is. A rename that ends well moves the number there.
    pub(super) fn name_again(&mut self, record: &mut Record, path: &str) {
        let (dir, Some(name)) = self.place(path) else { return };
        record.new_dir = Some(dir);
        record.new_name = name.into();
    }

    /// The object of `record`, a rename from the path `old` that ended well, has its new name.
    pub(super) fn moved(&mut self, record: &Record, old: &str) {
        self.remove(old);
        if let (Some(object), Some(dir)) = (record.object, record.new_dir) {
            let name = String::from_utf8_lossy(&record.new_name).into_owned();
            self.names.insert((dir, name.into()), object);
        }
    }

    /// The path is another name of the object.
    pub(super) fn linked(&mut self, object: u64, path: &str) {
        if let (dir, Some(name)) = self.place(path) {
            self.names.insert((dir, name.into()), object);
        }
    }
}
