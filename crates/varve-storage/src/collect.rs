//! Objects that nobody needs, whatever left them: uploads that were cut off, files that shared objects and are all gone, records behind a
//! root.
//!
//! 1. Every directory is read, and which objects it and its files need is noted.
//! 2. All objects are listed. One that is not needed and not known as garbage becomes garbage now.
//! 3. What has been garbage for longer than the oldest reader may read is removed, here or by the next owner's upkeep.

use std::collections::{HashMap, HashSet};
use std::io;

use serde::Serialize;

use crate::record::{
    DATA, DIR, GarbageKind, JOURNAL, ROOT, data_id, data_name, dir_id, dir_name, journal_name,
    journal_seq, root_name, root_seq,
};
use crate::store::{Live, Store};

/// An object that nobody needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unneeded {
    /// Its name below the prefix of the store.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Why nobody needs it.
    pub reason: &'static str,
    /// Since when that is known, in seconds since 1970; `None` if it was found only now.
    pub since: Option<i64>,
}

/// What there is, and how much of it is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// All objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that nobody needs, by name.
    pub unneeded: Vec<Unneeded>,
}

impl Store {
    /// Finds what nobody needs, and makes garbage of it if this process owns the store. REQUIRES: nothing is being written.
    pub(crate) fn collect(&self) -> io::Result<Collected> {
        let mut live = self.files()?;
        let mut needed = HashSet::new();
        live.tree.each_object(&mut |name| needed.extend([name]))?;
        let mut collected = Collected::default();
        for prefix in [DATA, DIR, JOURNAL, ROOT] {
            let mut after: Option<String> = None;
            loop {
                let infos = self.requests.list(prefix, after.as_deref())?;
                let Some(last) = infos.last() else { break };
                after = Some(last.name.clone());
                for info in infos {
                    collected.objects += 1;
                    collected.bytes += info.bytes;
                    if let Some(reason) = reason(&live, &needed, &info.name) {
                        let (name, bytes) = (info.name, info.bytes);
                        let since = None;
                        collected.unneeded.push(Unneeded { name, bytes, reason, since });
                    }
                }
            }
        }
        let known = known(&live);
        for object in &mut collected.unneeded {
            object.since = known.get(&object.name).copied();
        }
        if self.is_owner() {
            // No state has it, so no record has to come first.
            (live.tree.seq, live.tree.at) = (live.seq, self.machine.now().secs());
            for object in collected.unneeded.iter().filter(|object| object.since.is_none()) {
                if let Some(kind) = kind_of(&object.name) {
                    live.tree.leave(kind);
                }
            }
            live.tree.seq = live.seq + 1;
        }
        Ok(collected)
    }
}

/// Why nobody needs an object; `None` if it is needed.
fn reason(live: &Live, needed: &HashSet<String>, name: &str) -> Option<&'static str> {
    if name.starts_with(DATA) {
        let reason = "no file has it: its file is gone or was overwritten, or its upload was cut off or is under way";
        return (!needed.contains(name)).then_some(reason);
    }
    if name.starts_with(DIR) {
        return (!needed.contains(name))
            .then_some("a later state of its directory has another table");
    }
    let root = live.root?;
    if let Some(seq) = journal_seq(name) {
        let is_behind = seq <= root && !live.fences.contains(&seq);
        return is_behind.then_some("a root has what it says");
    }
    root_seq(name).is_some_and(|seq| seq < root).then_some("there is a later root")
}

/// The names that are known as garbage, and since when.
fn known(live: &Live) -> HashMap<String, i64> {
    let mut names = HashMap::new();
    for garbage in &live.tree.garbage {
        let at = garbage.at;
        match garbage.what {
            GarbageKind::Data(id) => names.extend([(data_name(id), at)]),
            GarbageKind::Dir(id) => names.extend([(dir_name(id), at)]),
            GarbageKind::Root(seq) => names.extend([(root_name(seq), at)]),
            GarbageKind::Journal(from, to) => {
                names.extend((from..to).map(|seq| (journal_name(seq), at)));
            }
        }
    }
    names
}

fn kind_of(name: &str) -> Option<GarbageKind> {
    let record = || journal_seq(name).map(|seq| GarbageKind::Journal(seq, seq + 1));
    data_id(name)
        .map(GarbageKind::Data)
        .or_else(|| dir_id(name).map(GarbageKind::Dir))
        .or_else(record)
        .or_else(|| root_seq(name).map(GarbageKind::Root))
}
