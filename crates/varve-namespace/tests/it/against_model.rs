//! Random operations answer as the model does, write no row that is not locked, and leave every count right.

use std::collections::HashMap;

use bytes::Bytes;
use varve_namespace::attrs::{self, stored_attr};
use varve_namespace::xattr::{self, NewXattr};
use varve_namespace::{
    Changes, Created, Decision, NameIn, NewInode, Remove, create, link, reap, remove, rename,
};
use varve_schema::{Content, FileKind, Inode, InodeLocation, RowKey};
use varve_testkit::model::ModelFs;
use varve_testkit::rng::Rng;
use varve_types::{FileName, InodeId};
use varve_vfs::{
    Caller, FsError, FsResult, Handle, OpenFlags, RenameMode, SetAttr, Vfs, XattrMode,
};

use crate::map::Map;
use crate::recount::recount;

const NAMES: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
const CALLER: Caller = Caller { uid: 7, gid: 8, umask: 0o022 };

/// Both file systems, and which inode of one is which of the other.
struct Pair {
    map: Map,
    model: ModelFs,
    models: HashMap<InodeId, InodeId>,
    open: Vec<(InodeId, Handle)>,
}

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn name_in<'a>(map: &Map, dir: InodeId, text: &'a str) -> NameIn<'a> {
    NameIn::new(varve_namespace::Rows::hasher(map), dir, name(text))
}

/// Both are refused for the same reason, or neither is.
fn same<O, T>(ours: &FsResult<O>, theirs: &FsResult<T>, what: &str) -> bool {
    let ours = ours.as_ref().map(|_| &()).map_err(FsError::errno);
    let theirs = theirs.as_ref().map(|_| &()).map_err(FsError::errno);
    assert_eq!(ours, theirs, "{what}");
    ours.is_ok()
}

impl Pair {
    fn new() -> Pair {
        let models = HashMap::from([(InodeId::ROOT, InodeId::ROOT)]);
        Pair { map: Map::new(), model: ModelFs::on_this_machine(), models, open: Vec::new() }
    }

    fn model_of(&self, ino: InodeId) -> InodeId {
        self.models[&ino]
    }

    /// Keys that an executor would lock at once; or none, as an operation asks for what it lacks.
    fn keys(&self, rng: &mut Rng, ends: &[(InodeId, &str)]) -> Vec<RowKey> {
        let mut keys = Vec::new();
        if rng.chance(50) {
            for (dir, text) in ends {
                let suffix = varve_namespace::Rows::hasher(&self.map).entry(text.as_bytes());
                keys.extend([RowKey::inode(*dir), RowKey::entry(*dir, suffix)]);
            }
        }
        keys
    }

    fn create(&mut self, rng: &mut Rng, dir: InodeId, text: &str) {
        let (new, is_dir, target) = match rng.below(4) {
            0 | 1 => (NewInode::directory(0o777), true, None),
            2 => (NewInode::regular(0o666), false, None),
            _ => {
                let content = Content::Symlink(Bytes::from_static(b"somewhere"));
                let kind = FileKind::Symlink;
                (NewInode { kind, perm: 0o777, rdev: 0, content }, false, Some(b"somewhere"))
            }
        };
        let ours = self.map.run(&self.keys(rng, &[(dir, text)]), |map, decision, now| {
            create(map, &mut decision.changes, CALLER, name_in(map, dir, text), &new, now)
        });
        let parent = self.model_of(dir);
        let theirs = match (is_dir, target) {
            (true, _) => self.model.mkdir(CALLER, parent, name(text), 0o777),
            (_, Some(target)) => self.model.symlink(CALLER, parent, name(text), target),
            _ => self.model.mknod(CALLER, parent, name(text), 0o100_666, 0),
        };
        if same(&ours, &theirs, "create") {
            let Created { inode, place } = ours.unwrap();
            self.map.used_ino();
            self.map.places.insert(inode.ino, place);
            let theirs = theirs.unwrap().attr.ino;
            self.model.forget(theirs, 1);
            self.models.insert(inode.ino, theirs);
        }
    }

    fn remove(&mut self, rng: &mut Rng, dir: InodeId, text: &str) {
        let what = if rng.chance(50) { Remove::File } else { Remove::Directory };
        let ours = self.map.run(&self.keys(rng, &[(dir, text)]), |map, decision, now| {
            remove(map, decision, name_in(map, dir, text), what, now)
        });
        let parent = self.model_of(dir);
        let theirs = match what {
            Remove::File => self.model.unlink(parent, name(text)),
            Remove::Directory => self.model.rmdir(parent, name(text)),
        };
        same(&ours, &theirs, "remove");
    }

    fn link(&mut self, rng: &mut Rng, ino: InodeId, dir: InodeId, text: &str) {
        let ours = self.map.run(&self.keys(rng, &[(dir, text)]), |map, decision, now| {
            link(map, decision, ino, name_in(map, dir, text), now)
        });
        let theirs = self.model.link(self.model_of(ino), self.model_of(dir), name(text));
        if same(&ours, &theirs, "link") {
            self.model.forget(theirs.unwrap().attr.ino, 1);
        }
    }

    fn rename(&mut self, rng: &mut Rng, from: (InodeId, &str), to: (InodeId, &str)) {
        let mode = match rng.below(8) {
            0 | 1 => RenameMode::Exchange,
            2 => RenameMode::NoReplace,
            3 => RenameMode::Whiteout { caller: CALLER, replaces: rng.chance(50) },
            _ => RenameMode::Replace,
        };
        let before = self.map.next_ino();
        let ours = self.map.run(&self.keys(rng, &[from, to]), |map, decision, now| {
            let (from, to) = (name_in(map, from.0, from.1), name_in(map, to.0, to.1));
            rename(map, decision, from, to, mode, now)
        });
        let (parent, new_parent) = (self.model_of(from.0), self.model_of(to.0));
        let theirs = self.model.rename(parent, name(from.1), new_parent, name(to.1), mode);
        if same(&ours, &theirs, "rename") && mode.whiteout_by().is_some() {
            self.take_in_whiteout(before, from);
        }
    }

    /// The whiteout `ino` under a name, if it was made.
    fn take_in_whiteout(&mut self, ino: InodeId, (dir, text): (InodeId, &str)) {
        let suffix = varve_namespace::Rows::hasher(&self.map).entry(text.as_bytes());
        let key = RowKey::entry(dir, suffix);
        let row = self.map.names(key);
        let Some(named) = row.find(text.as_bytes()).filter(|named| named.body.ino() == ino) else {
            return;
        };
        let place = InodeLocation::Entry { key, slot: named.slot };
        self.map.used_ino();
        self.map.places.insert(ino, place);
        let theirs = self.model.lookup(self.model_of(dir), name(text)).unwrap().attr.ino;
        self.model.forget(theirs, 1);
        self.models.insert(ino, theirs);
    }

    /// Changes an inode where it is, as an executor does who has locked its row.
    fn change(
        &mut self,
        ino: InodeId,
        change: impl Fn(&Map, &mut Changes, &mut Inode) -> Result<(), varve_namespace::Stop>,
    ) -> FsResult<()> {
        let place = self.map.places[&ino].clone();
        let key = match &place {
            InodeLocation::Entry { key, .. } => *key,
            _ => RowKey::inode(ino),
        };
        let operation = |map: &Map, decision: &mut Decision, _| {
            let mut inode = map.find(ino).unwrap();
            let changes = &mut decision.changes;
            change(map, changes, &mut inode)?;
            match &place {
                InodeLocation::Entry { key, slot } => {
                    let mut row = map.names(*key);
                    row.set_body(*slot, varve_schema::Body::Inline(inode));
                    changes.put_entry_row(*key, &row);
                }
                _ => changes.put_inode(&inode),
            }
            Ok(())
        };
        self.map.run(&[key], operation)
    }

    fn set_attributes(&mut self, rng: &mut Rng, ino: InodeId) {
        let set = match rng.below(3) {
            0 => SetAttr { perm: Some(rng.below(0o10000) as u32), ..SetAttr::default() },
            1 => SetAttr { uid: Some(rng.below(3) as u32), ..SetAttr::default() },
            _ => {
                SetAttr { gid: Some(rng.below(3) as u32), kill_set_id: true, ..SetAttr::default() }
            }
        };
        let now = varve_types::Timestamp::new(1, 0).unwrap();
        let ours = self
            .change(ino, |map, changes, inode| attrs::set(map, changes, inode, CALLER, &set, now));
        let theirs = self.model.setattr(CALLER, self.model_of(ino), set);
        same(&ours, &theirs, "setattr");
    }

    fn set_xattr(&mut self, rng: &mut Rng, ino: InodeId) {
        let names: [&[u8]; 4] = [b"user.a", b"user.b", b"trusted.c", b"security.capability"];
        let (name, value) = (*rng.pick(&names), rng.bytes(9));
        let mode = *rng.pick(&[XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
        let model = self.model_of(ino);
        if rng.chance(40) {
            let ours = self.change(ino, |map, changes, inode| {
                xattr::remove(map, changes, inode, name, None).map(drop)
            });
            same(&ours, &self.model.removexattr(model, name), "removexattr");
            return;
        }
        let ours = self.change(ino, |map, changes, inode| {
            xattr::set(map, changes, inode, NewXattr { name, value: &value, mode }, None).map(drop)
        });
        same(&ours, &self.model.setxattr(model, name, &value, mode), "setxattr");
    }

    /// Opens a file that has a name, or closes one; one without a name goes then.
    fn open_or_close(&mut self, rng: &mut Rng, ino: InodeId) {
        let is_file = self.map.find(ino).is_some_and(|inode| inode.kind == FileKind::Regular);
        if is_file && rng.chance(50) {
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let handle = self.model.open(self.model_of(ino), flags).unwrap().handle;
            self.open.push((ino, handle));
            self.map.open.insert(ino);
        } else if !self.open.is_empty() {
            let (ino, handle) = self.open.swap_remove(rng.below(self.open.len() as u64) as usize);
            self.model.release(self.model_of(ino), handle).unwrap();
            if self.open.iter().any(|(other, _)| *other == ino) {
                return;
            }
            self.map.open.remove(&ino);
            let orphan = self.map.own(ino).filter(|inode| inode.nlink == 0);
            if let Some(inode) = orphan {
                let reaped = self.map.run(&[RowKey::inode(ino)], |map, decision, _| {
                    reap(map, decision, inode.clone())
                });
                reaped.unwrap();
            }
        }
    }

    /// All inodes look the same in both.
    fn compare(&self) {
        for ino in self.map.places.keys() {
            let ours = stored_attr(&self.map.find(*ino).unwrap());
            let theirs = self.model.getattr(self.model_of(*ino)).unwrap();
            let shown = |attr: &varve_vfs::Attr| {
                (attr.kind, attr.perm, attr.nlink, attr.uid, attr.gid, attr.rdev, attr.size)
            };
            assert_eq!(shown(&ours), shown(&theirs), "inode {ino}");
            let names = |list: Vec<u8>| {
                let mut names: Vec<_> = list.split(|b| *b == 0).map(<[u8]>::to_vec).collect();
                names.sort();
                names
            };
            let ours = xattr::list(&self.map, &self.map.find(*ino).unwrap()).unwrap();
            let theirs = self.model.listxattr(self.model_of(*ino)).unwrap();
            assert_eq!(names(ours), names(theirs), "attributes of {ino}");
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let mut inos: Vec<InodeId> = self.map.places.keys().copied().collect();
        inos.sort_unstable();
        let dirs: Vec<InodeId> = inos
            .iter()
            .copied()
            .filter(|ino| self.map.find(*ino).unwrap().kind == FileKind::Directory)
            .collect();
        let ino = *rng.pick(&inos);
        let (dir, other) = (*rng.pick(&dirs), *rng.pick(&dirs));
        let (text, second) = (*rng.pick(&NAMES), *rng.pick(&NAMES));
        match rng.below(20) {
            0..6 => self.create(rng, dir, text),
            6..9 => self.remove(rng, dir, text),
            9..11 => self.link(rng, ino, dir, text),
            11..16 => self.rename(rng, (dir, text), (other, second)),
            16 => self.set_attributes(rng, ino),
            17 => self.set_xattr(rng, ino),
            _ => self.open_or_close(rng, ino),
        }
    }
}

fn run(seed: u64, steps: usize, forgets_locks: bool) {
    let (mut rng, mut pair) = (Rng::new(seed), Pair::new());
    (pair.map.forgets_locks, pair.map.finds_open) = (forgets_locks, seed % 2 == 1);
    for _ in 0..steps {
        pair.step(&mut rng);
        recount(&pair.map);
    }
    pair.compare();
}

#[test]
fn operations_on_a_map_do_what_the_model_does() {
    for seed in 0..20 {
        run(seed, 200, false);
    }
}

#[test]
#[ignore = "goes on for as long as it is told"]
fn soak_operations_on_a_map() {
    println!("{}", varve_testkit::soak(|seed| run(seed, 400, false)));
}

/// A reader that forgets to ask for locks is found out.
#[test]
#[should_panic(expected = "not locked")]
fn a_row_that_is_written_without_its_lock_is_noticed() {
    for seed in 0..60 {
        run(seed, 200, true);
    }
}
