//! Fills a store with rows, or checks one, and says how long that took and how much memory.
//!
//! ```text
//! cargo run --release -p varve-fs --example fsck_scale -- fill STORE FILES
//! cargo run --release -p varve-fs --example fsck_scale -- check STORE MEMORY_MIB
//! ```
//!
//! The rows are written past the file system, which makes ten million in a minute; they are those of a tree
//! with 99 files of 10 bytes and up to 100 subdirectories in each directory.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measurement on the machine itself"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use varve_engine::db::Db;
use varve_engine::options::DbOptions;
use varve_engine::{Batch, KeyspaceOptions, Store};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fs::fsck::{CheckOptions, check_store};
use varve_fs::superblock::{Superblock, engine_dir};
use varve_fs::{FormatOptions, format};
use varve_schema::key::ID_MARK;
use varve_schema::{
    Body, Content, DirInfo, EntryRow, FileKind, Inode, META, NameHasher, RowKey, Times, Usage,
    encode_inode_row, put_varint,
};
use varve_types::{FileFlags, InodeId, KeyspaceId, Timestamp};

const FILES_PER_DIR: u64 = 99;
const FAN_OUT: u64 = 100;
const FILE_BYTES: u64 = 10;
const ROWS_PER_BATCH: usize = 2000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, store, number] = &arguments[..] else {
        panic!("fill STORE FILES | check STORE MIB")
    };
    let (store, number) = (Path::new(store), number.parse::<u64>().unwrap());
    let start = Instant::now();
    match verb.as_str() {
        "fill" => fill(store, number),
        _ => check(store, number),
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!("{:.1} s, {peak}", start.elapsed().as_secs_f64());
}

fn check(store: &Path, mib: u64) {
    let options = CheckOptions { memory_bytes: (mib << 20) as usize, ..CheckOptions::default() };
    let report = check_store(OsEnv::new(), store, &options, &mut |_| ()).unwrap();
    println!(
        "{} directories, {} files, {} findings, {} MiB spilled",
        report.directories,
        report.files,
        report.errors,
        report.spilled_bytes >> 20
    );
    for finding in report.findings.iter().take(10) {
        println!("{finding}");
    }
}

/// Directory `i`; the root is the first, files come after all directories.
fn dir_id(i: u64) -> InodeId {
    if i == 0 { InodeId::ROOT } else { InodeId::new(15 + i) }
}

fn blank(ino: InodeId, kind: FileKind, size: u64, content: Content) -> Inode {
    Inode {
        ino,
        kind,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        times: Times::all(Timestamp::EPOCH),
        has_xattrs: false,
        flags: FileFlags::default(),
        home: None,
        content,
    }
}

struct Filler {
    db: Db,
    meta: KeyspaceId,
    hasher: NameHasher,
    batch: Batch,
}

impl Filler {
    fn put(&mut self, key: RowKey, value: Vec<u8>) {
        self.batch.put(self.meta, key.to_bytes(), value);
        if self.batch.ops().len() >= ROWS_PER_BATCH {
            self.db.write(std::mem::take(&mut self.batch)).unwrap();
        }
    }

    fn name(&mut self, dir: InodeId, name: &str, body: Body) {
        let mut row = EntryRow::default();
        row.insert(name.as_bytes(), body).unwrap();
        self.put(RowKey::entry(dir, self.hasher.entry(name.as_bytes())), row.encode());
    }
}

fn fill(store: &Path, files: u64) {
    let env: Arc<dyn Env> = OsEnv::new();
    format(&env, store, &FormatOptions::default()).unwrap();
    let superblock = Superblock::read(env.as_ref(), store).unwrap();
    let key = u128::from_str_radix(&superblock.name_hash_key, 16).unwrap();
    let db = Db::open(env, &engine_dir(store), DbOptions::default()).unwrap();
    let meta = db.keyspace(META, KeyspaceOptions { prefixed: true, compressed: false }).unwrap();
    let hasher = NameHasher::new(key, superblock.name_hash_bits);
    let mut filler = Filler { db, meta, hasher, batch: Batch::new() };
    let dirs = files.div_ceil(FILES_PER_DIR);
    let mut below = vec![Usage::default(); dirs as usize];
    for i in (0..dirs).rev() {
        let own = &mut below[i as usize];
        (own.files, own.bytes) =
            (own.files + FILES_PER_DIR, own.bytes + FILES_PER_DIR * FILE_BYTES);
        let usage = *own;
        if i > 0 {
            let above = &mut below[((i - 1) / FAN_OUT) as usize];
            above.files += usage.files;
            above.bytes += usage.bytes;
            above.dirs += usage.dirs + 1;
        }
    }
    let mut mark = vec![1];
    put_varint(&mut mark, 16 + dirs + dirs * FILES_PER_DIR);
    filler.put(ID_MARK, mark);
    for i in 0..dirs {
        let subdirs = dirs.saturating_sub(i * FAN_OUT + 1).min(FAN_OUT);
        let (above, name) = (dir_id(i.saturating_sub(1) / FAN_OUT), format!("directory-{i}"));
        let suffix = (i > 0).then(|| filler.hasher.entry(name.as_bytes()));
        let mut info = DirInfo::new(above, suffix);
        (info.entries, info.subdirs) = (FILES_PER_DIR + subdirs, subdirs as u32);
        info.usage = below[i as usize];
        let mut inode = blank(dir_id(i), FileKind::Directory, 0, Content::Directory(info));
        inode.nlink = subdirs as u32 + 2;
        filler.put(RowKey::inode(dir_id(i)), encode_inode_row(&inode));
        if i > 0 {
            let kind = FileKind::Directory;
            filler.name(above, &name, Body::Reference { ino: dir_id(i), kind });
        }
        for j in 0..FILES_PER_DIR {
            let ino = InodeId::new(16 + dirs + i * FILES_PER_DIR + j);
            let content = Content::Inline(bytes::Bytes::from_static(b"0123456789"));
            let inode = blank(ino, FileKind::Regular, FILE_BYTES, content);
            filler.name(dir_id(i), &format!("file-{j}"), Body::Inline(inode));
        }
    }
    filler.db.write(std::mem::take(&mut filler.batch)).unwrap();
    filler.db.close().unwrap();
    println!("{dirs} directories, {} files", dirs * FILES_PER_DIR);
}
