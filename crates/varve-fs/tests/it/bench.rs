//! A store whose rows can be changed behind the file system's back.

use std::path::Path;
use std::sync::Arc;

use varve_engine::db::Db;
use varve_engine::options::DbOptions;
use varve_engine::{Batch, Direction, KeyRange, KeyspaceOptions, Pair, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::fsck::repair::{RepairReport, repair_store};
use varve_fs::fsck::{CheckOptions, Report, check_store};
use varve_fs::superblock::{Superblock, engine_dir};
use varve_fs::{FormatOptions, VarveFs};
use varve_schema::{
    Body, Content, DATA, EntryRow, Inode, META, NameHasher, RowKey, decode_inode_row,
    encode_inode_row,
};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{Vfs, XattrMode};

use crate::crash::{STORE, open, sim_store};
use crate::support::{Calls, ROOT, name};

/// Little memory, so that even a small store does not fit.
pub(crate) const TIGHT: usize = 4096;

/// A closed store whose rows can be changed at will.
#[derive(Clone)]
pub(crate) struct Bench {
    pub(crate) env: Arc<SimEnv>,
    pub(crate) hasher: NameHasher,
    pub(crate) dir: InodeId,
    pub(crate) inner: InodeId,
    pub(crate) small: InodeId,
    pub(crate) linked: InodeId,
    pub(crate) large: InodeId,
}

impl Bench {
    /// `d/inner/deep`, `d/small` (chunks, an attribute), `d/linked` and `linked2`, `d/large`.
    pub(crate) fn new() -> Bench {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open(&env);
        let dir = fs.mk_dir(ROOT, "d");
        let inner = fs.mk_dir(dir, "inner");
        let small = fs.mk(dir, "small");
        fs.put_at(small, 0, &[1; 20_000]);
        fs.setxattr(small, b"user.a", b"1", XattrMode::Set).unwrap();
        let linked = fs.mk(dir, "linked");
        fs.put_at(linked, 0, b"both");
        fs.link(linked, ROOT, name("linked2")).unwrap();
        let large = fs.mk(dir, "large");
        fs.put_at(large, 0, &[2; 200_000]);
        let deep = fs.mk(inner, "deep");
        fs.put_at(deep, 0, b"deep");
        fs.sync().unwrap();
        fs.close().unwrap();
        drop::<VarveFs>(fs);
        let hasher = hasher_of(&env);
        Bench { env, hasher, dir, inner, small, linked, large }
    }

    /// Lets `change` break something and checks.
    pub(crate) fn after(&self, change: impl FnOnce(&Rows)) -> Report {
        self.change(change);
        self.check()
    }

    /// Lets `change` break something.
    pub(crate) fn change(&self, change: impl FnOnce(&Rows)) {
        let rows = Rows::open(&self.env);
        change(&rows);
        rows.close();
    }

    pub(crate) fn check(&self) -> Report {
        check(&self.env)
    }

    pub(crate) fn entry(&self, dir: InodeId, text: &str) -> RowKey {
        RowKey::entry(dir, self.hasher.entry(text.as_bytes()))
    }
}

pub(crate) fn hasher_of(env: &Arc<SimEnv>) -> NameHasher {
    let superblock = Superblock::read(env.as_ref(), Path::new(STORE)).unwrap();
    let key = u128::from_str_radix(&superblock.name_hash_key, 16).unwrap();
    NameHasher::new(key, superblock.name_hash_bits)
}

/// Checks with plenty and with little memory, which must say the same.
pub(crate) fn check(env: &Arc<SimEnv>) -> Report {
    let with = |options: &CheckOptions| {
        let env: Arc<dyn Env> = env.clone();
        check_store(env, Path::new(STORE), options, &mut |_| ()).unwrap()
    };
    let tight = CheckOptions { memory_bytes: TIGHT, ..CheckOptions::default() };
    let (plenty, tight) = (with(&CheckOptions::default()), with(&tight));
    assert!(tight.spilled_bytes > 0 || plenty.names < 100, "nothing was spilled");
    assert_eq!(plenty, Report { spilled_bytes: 0, ..tight });
    plenty
}

/// Repairs, with little memory.
pub(crate) fn repair(env: &Arc<SimEnv>) -> RepairReport {
    let env: Arc<dyn Env> = env.clone();
    let options = CheckOptions { memory_bytes: TIGHT, ..CheckOptions::default() };
    repair_store(env, Path::new(STORE), &options, &mut |_| ()).unwrap()
}

/// The rows of a store without its file system.
pub(crate) struct Rows {
    pub(crate) db: Db,
    pub(crate) meta: KeyspaceId,
    pub(crate) data: KeyspaceId,
}

impl Rows {
    pub(crate) fn open(env: &Arc<SimEnv>) -> Rows {
        let env: Arc<dyn Env> = env.clone();
        let db = Db::open(env, &engine_dir(Path::new(STORE)), DbOptions::default()).unwrap();
        let options = KeyspaceOptions { prefixed: true, compressed: false };
        let meta = db.keyspace(META, options).unwrap();
        let data = db.keyspace(DATA, options).unwrap();
        db.set_external_sync(Box::new(|| Ok(())));
        Rows { db, meta, data }
    }

    pub(crate) fn close(self) {
        self.db.close().unwrap();
    }

    pub(crate) fn all(&self, keyspace: KeyspaceId) -> Vec<Pair> {
        let rows = self.db.scan(keyspace, KeyRange::all(), Direction::Forward).unwrap();
        rows.map(Result::unwrap).collect()
    }

    pub(crate) fn get(&self, keyspace: KeyspaceId, key: RowKey) -> Vec<u8> {
        self.db.get(keyspace, &key.to_bytes()).unwrap().unwrap().to_vec()
    }

    pub(crate) fn put(&self, keyspace: KeyspaceId, key: RowKey, value: Vec<u8>) {
        let mut batch = Batch::new();
        batch.put(keyspace, key.to_bytes(), value);
        self.db.write(batch).unwrap();
    }

    pub(crate) fn delete(&self, keyspace: KeyspaceId, key: RowKey) {
        let mut batch = Batch::new();
        batch.delete(keyspace, key.to_bytes());
        self.db.write(batch).unwrap();
    }

    pub(crate) fn change_inode(&self, ino: InodeId, change: impl FnOnce(&mut Inode)) {
        let key = RowKey::inode(ino);
        let value = self.db.get(self.meta, &key.to_bytes()).unwrap().unwrap();
        let mut inode = decode_inode_row(&value).unwrap();
        change(&mut inode);
        self.put(self.meta, key, encode_inode_row(&inode));
    }

    pub(crate) fn change_dir(&self, ino: InodeId, change: impl FnOnce(&mut varve_schema::DirInfo)) {
        self.change_inode(ino, |inode| match &mut inode.content {
            Content::Directory(info) => change(info),
            _ => panic!("not a directory"),
        });
    }

    pub(crate) fn change_entry(&self, key: RowKey, change: impl FnOnce(&mut EntryRow)) {
        let value = self.db.get(self.meta, &key.to_bytes()).unwrap().unwrap();
        let mut row = EntryRow::decode(&value).unwrap();
        change(&mut row);
        self.put(self.meta, key, row.encode());
    }

    pub(crate) fn change_inline(&self, key: RowKey, change: impl FnOnce(&mut Inode)) {
        self.change_entry(key, |row| {
            let named = row.names()[0].clone();
            let Body::Inline(mut inode) = named.body else { panic!("not inline") };
            change(&mut inode);
            row.set_body(named.slot, Body::Inline(inode));
        });
    }
}
