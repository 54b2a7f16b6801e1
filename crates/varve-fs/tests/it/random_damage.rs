//! Random damage to rows and objects: whatever is broken, a repair ends with nothing to be found, and what the
//! damage did not touch is as it was.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};
use varve_fs::FormatOptions;
use varve_fs::fsck::repair::repair_engine;
use varve_fs::fsck::{CheckOptions, Finding, Severity};
use varve_schema::key::{MetaRow, STORE_ID};
use varve_schema::{Body, EntryRow, RowKey};
use varve_testkit::fsops::{Lockstep, Times, TreeDump, TreePath, Universe, tree};
use varve_testkit::rng::Rng;
use varve_types::KeyspaceId;
use varve_vfs::{FileType, Vfs};

use crate::bench::{Rows, check, repair};
use crate::crash::{STORE, open, sim_store};

/// Inodes and directories whose rows or objects were changed. Of an entry row these are the directory and all
/// it names: the name may be another afterwards.
#[derive(Debug, Default)]
struct Touched {
    /// Inodes whose content may have changed.
    inodes: BTreeSet<u64>,
    /// Entry rows, by key.
    rows: BTreeSet<Vec<u8>>,
}

impl Touched {
    fn row(&mut self, keyspace: KeyspaceId, rows: &Rows, key: &[u8]) {
        let Some(parsed) = RowKey::from_bytes(key) else { return };
        if keyspace != rows.meta {
            self.inodes.insert(parsed.prefix());
            return;
        }
        match parsed.meta_kind() {
            MetaRow::Pending(ino) | MetaRow::Inode(ino) => {
                self.inodes.insert(ino.get());
            }
            MetaRow::Entry(..) => {
                self.rows.insert(key.to_vec());
                let value = varve_engine::Store::get(&rows.db, keyspace, key).unwrap();
                let row = value.and_then(|value| EntryRow::decode(&value).ok()).unwrap_or_default();
                self.inodes.extend(row.names().iter().map(|named| named.body.ino().get()));
            }
            _ => {}
        }
    }

    /// What the row that is there now names.
    fn named_by(&mut self, value: &[u8]) {
        let row = EntryRow::decode(&bytes::Bytes::copy_from_slice(value)).unwrap_or_default();
        for named in row.names() {
            self.inodes.insert(named.body.ino().get());
            if let Body::Inline(inode) = &named.body {
                self.inodes.insert(inode.ino.get());
            }
        }
    }
}

fn break_rows(env: &Arc<SimEnv>, rng: &mut Rng, touched: &mut Touched) {
    let rows = Rows::open(env);
    for _ in 0..=rng.below(6) {
        let keyspace = if rng.chance(75) { rows.meta } else { rows.data };
        let all = rows.all(keyspace);
        if all.is_empty() {
            continue;
        }
        let (key, value) = rng.pick(&all).clone();
        let parsed = RowKey::from_bytes(&key).unwrap();
        if parsed == STORE_ID {
            continue;
        }
        touched.row(keyspace, &rows, &key);
        match rng.below(5) {
            0 => rows.delete(keyspace, parsed),
            1 => {
                let mut value = value.to_vec();
                let at = rng.below(value.len().max(1) as u64) as usize;
                value.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << rng.below(8));
                touched.named_by(&value);
                rows.put(keyspace, parsed, value);
            }
            2 => {
                let cut = rng.below(value.len() as u64 + 1) as usize;
                rows.put(keyspace, parsed, value[..cut].to_vec());
            }
            3 => {
                let other = rng.pick(&all).0.clone();
                touched.row(keyspace, &rows, &other);
                touched.named_by(&value);
                rows.put(keyspace, RowKey::from_bytes(&other).unwrap(), value.to_vec());
            }
            _ => {
                let ino = 2 + rng.below(2000);
                touched.inodes.insert(ino);
                touched.named_by(&value);
                let key = parsed.of_inode(varve_types::InodeId::new(ino));
                touched.row(keyspace, &rows, &key.to_bytes());
                rows.put(keyspace, key, value.to_vec());
            }
        }
    }
    rows.close();
}

fn break_objects(env: &Arc<SimEnv>, rng: &mut Rng, touched: &mut Touched) {
    let dir: PathBuf = Path::new(STORE).join("objects/0/0");
    let names = env.list(&dir).unwrap_or_default();
    if !names.is_empty() && rng.chance(50) {
        let item = rng.pick(&names);
        let ino: u64 = item.name.to_str().unwrap().parse().unwrap();
        touched.inodes.insert(ino);
        let path = dir.join(&item.name);
        match rng.below(3) {
            0 => env.remove_raw(&path).unwrap(),
            1 => env.truncate_raw(&path, rng.below(200_000)).unwrap(),
            _ => {
                let other = 20 + rng.below(500);
                touched.inodes.insert(other);
                env.rename(&path, &dir.join(other.to_string())).unwrap();
            }
        }
    }
    if !names.is_empty() && rng.chance(12) {
        let ino = 20 + rng.below(3000);
        touched.inodes.insert(ino);
        if let Ok(file) = env.open(&dir.join(ino.to_string()), OpenMode::CreateNew) {
            file.write_all_at(&vec![9; rng.below(9000) as usize], 0).unwrap();
        }
    }
}

/// The inode and the entry rows that lead to each path of the tree.
type Ways = Vec<(TreePath, u64, Vec<Vec<u8>>, Vec<u64>)>;

fn ways(env: &Arc<SimEnv>) -> Ways {
    let rows = Rows::open(env);
    let mut ways: Ways = vec![(TreePath::default(), 1, Vec::new(), vec![1])];
    let mut found = Ways::new();
    let all = rows.all(rows.meta);
    rows.close();
    while let Some((path, dir, keys, dirs)) = ways.pop() {
        for (key, value) in &all {
            let parsed = RowKey::from_bytes(key).unwrap();
            let MetaRow::Entry(of, _) = parsed.meta_kind() else { continue };
            if of.get() != dir {
                continue;
            }
            for named in EntryRow::decode(value).unwrap().names() {
                let path = path.join(&named.name);
                let (mut keys, mut dirs) = (keys.clone(), dirs.clone());
                keys.push(key.to_vec());
                let ino = named.body.ino().get();
                if named.body.kind() == varve_schema::FileKind::Directory {
                    dirs.push(ino);
                    ways.push((path, ino, keys, dirs));
                } else {
                    found.push((path, ino, keys, dirs));
                }
            }
        }
    }
    found
}

/// Gives how many files the damage did not touch.
fn round(seed: u64, options: &FormatOptions) -> usize {
    let env = sim_store(seed, options);
    let mut lockstep = Lockstep::with_universe(seed, Universe::default());
    let fs = open(&env);
    lockstep.run(&fs, 250).unwrap();
    lockstep.release_all(&fs).unwrap();
    let before = tree(&fs).unwrap();
    fs.sync().unwrap();
    fs.close().unwrap();
    drop(fs);
    let ways = ways(&env);
    let (mut rng, mut touched) = (Rng::new(seed), Touched::default());
    break_rows(&env, &mut rng, &mut touched);
    break_objects(&env, &mut rng, &mut touched);
    check(&env);
    let report = repair(&env);
    let left = &report.left.findings;
    assert!(left.is_empty(), "seed {seed}: {left:?} after {:#?}", report.mended);
    assert!(repair(&env).did_nothing(), "seed {seed}");
    let fs = open(&env);
    let after = tree(&fs).unwrap_or_else(|e| panic!("seed {seed}: {e}: {:#?}", report.mended));
    compare(seed, &ways, &touched, &before, &after)
}

fn compare(
    seed: u64,
    ways: &Ways,
    touched: &Touched,
    before: &TreeDump,
    after: &TreeDump,
) -> usize {
    let mut compared = 0;
    for (path, ino, keys, dirs) in ways {
        let is_touched = touched.inodes.contains(ino)
            || keys.iter().any(|key| touched.rows.contains(key))
            || dirs[1..].iter().any(|dir| touched.inodes.contains(dir));
        if is_touched {
            continue;
        }
        let Some(node) = before.0.get(path) else { continue };
        if node.kind == FileType::Directory {
            continue;
        }
        let found = after.0.get(path).unwrap_or_else(|| panic!("seed {seed}: {path} is gone"));
        assert_eq!(
            (node.content_hash, node.content_len, node.perm, node.uid, &node.xattrs, node.times),
            (
                found.content_hash,
                found.content_len,
                found.perm,
                found.uid,
                &found.xattrs,
                found.times
            ),
            "seed {seed}: {path}"
        );
        compared += 1;
    }
    compared
}

#[test]
fn whatever_is_broken_is_repaired_and_the_rest_stays() {
    let compared: usize = (0..120).map(|seed| round(seed, &FormatOptions::default())).sum();
    assert!(compared > 1000, "{compared}");
}

#[test]
fn with_colliding_names_and_low_thresholds_too() {
    let options = FormatOptions {
        name_hash_bits: 2,
        large_file_threshold_bytes: 4096,
        ..FormatOptions::default()
    };
    let compared: usize = (1000..1080).map(|seed| round(seed, &options)).sum();
    assert!(compared > 600, "{compared}");
}

/// Damages one file of the engine, or takes it away, and repairs all of the store. Gives whether nothing was lost by that.
fn file_round(seed: u64) -> bool {
    let env = sim_store(seed, &FormatOptions::default());
    let mut lockstep = Lockstep::with_universe(seed, Universe::default());
    for _ in 0..3 {
        let fs = open(&env);
        lockstep.run(&fs, 80).unwrap();
        lockstep.release_all(&fs).unwrap();
        fs.close().unwrap();
        drop(fs);
        let rows = Rows::open(&env);
        rows.db.flush().unwrap();
        rows.close();
    }
    let fs = open(&env);
    lockstep.run(&fs, 80).unwrap();
    lockstep.release_all(&fs).unwrap();
    let before = tree(&fs).unwrap();
    fs.close().unwrap();
    drop(fs);
    let mut rng = Rng::new(seed);
    let mut files = env.files_raw();
    files.retain(|path| path.starts_with("/store/engine") && !path.ends_with("LOCK"));
    let path = rng.pick(&files).clone();
    if rng.chance(20) {
        env.remove_raw(&path).unwrap();
    } else {
        let len = env.read_raw(&path).unwrap().len() as u64;
        env.damage(&path, rng.below(len), 1 << rng.below(8)).unwrap();
    }
    let dyn_env: Arc<dyn Env> = env.clone();
    let options = CheckOptions::default();
    let engine = repair_engine(&dyn_env, Path::new(STORE), &options).unwrap();
    assert!(repair_engine(&dyn_env, Path::new(STORE), &options).unwrap().did_nothing());
    let report = repair(&env);
    // Bytes that are lost are named from now on.
    let is_lost = |finding: &Finding| finding.severity() == Severity::Lost;
    let left = &report.left.findings;
    assert!(left.iter().all(is_lost), "seed {seed}: {left:?} after {:#?}", report.mended);
    assert!(left.is_empty() || !engine.lost_nothing(), "seed {seed}: {left:?}");
    assert!(repair(&env).did_nothing(), "seed {seed}");
    let fs = open(&env);
    let after = match tree(&fs) {
        Ok(after) => after,
        Err(error) => {
            assert!(report.left.lost > 0, "seed {seed}: {error}");
            return false;
        }
    };
    // Without a manifest rows may come back that had been deleted.
    let is_whole = engine.lost_nothing();
    if is_whole {
        let differences = before.differences(&after, Times::Compare);
        assert_eq!(differences, [] as [&str; 0], "seed {seed}: {engine:?}");
    }
    is_whole
}

#[test]
fn damaged_files_of_the_engine_are_repaired_and_so_are_the_rows() {
    let whole = (0..100).filter(|seed| file_round(*seed)).count();
    assert!(whole > 3, "{whole}");
}
