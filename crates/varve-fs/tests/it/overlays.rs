//! Large files in views, against vectors of bytes: written, cut, committed, ended, over crashes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::fsck::Finding;
use varve_fs::{CommitError, FormatOptions, TransactionOptions, VarveFs, ViewKind, ViewName};
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{AllocateMode, FsError, SeekFrom, Vfs};

use crate::crash::{STORE, open, sim_store};
use crate::support::{BOTH, Calls, ROOT, name};
use crate::views::sound;

const BLOCK: u64 = 1 << 16;
const FILES: u64 = 3;

/// The bytes of all files, as one view sees them.
type Bytes = BTreeMap<InodeId, Vec<u8>>;

/// A view that is open.
struct View {
    name: ViewName,
    /// When it began, and that of a transaction as it is now.
    bytes: Bytes,
    /// Files that the transaction has changed.
    changed: Vec<InodeId>,
}

struct World {
    env: Arc<SimEnv>,
    fs: VarveFs,
    main: Bytes,
    views: Vec<View>,
    begun: u64,
    rng: Rng,
}

/// The file system, which has been asked for all names and so knows their inodes.
fn known(fs: VarveFs) -> VarveFs {
    for name in ["f0", "f1", "f2", "huge"] {
        assert!(matches!(fs.find(ROOT, name), Ok(_) | Err(FsError::NotFound)));
    }
    fs
}

impl World {
    fn new(seed: u64) -> World {
        let (env, mut rng) = (sim_store(seed, &FormatOptions::default()), Rng::new(seed));
        let fs = open(&env);
        let mut main = Bytes::new();
        for i in 0..FILES {
            let ino = fs.mk(ROOT, &format!("f{i}"));
            let len = rng.between(2 * BLOCK, 7 * BLOCK) as usize;
            let bytes = rng.bytes(len);
            fs.put_at(ino, 0, &bytes);
            main.insert(ino, bytes);
        }
        fs.sync().unwrap();
        World { env, fs, main, views: Vec::new(), begun: 0, rng }
    }

    fn open_view(&self, at: usize) -> VarveFs {
        known(self.fs.open_view(&self.views[at].name).unwrap())
    }

    fn begin(&mut self) {
        self.begun += 1;
        let name = match self.rng.chance(50) {
            true => {
                let name = format!("s{}", self.begun);
                self.fs.create_snapshot(&name).unwrap();
                ViewName { kind: ViewKind::Snapshot, name }
            }
            false => self.fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap(),
        };
        self.views.push(View { name, bytes: self.main.clone(), changed: Vec::new() });
    }

    fn end(&mut self) {
        let at = self.rng.below(self.views.len() as u64) as usize;
        let fs = self.open_view(at);
        let View { name, bytes, changed } = self.views.remove(at);
        if name.kind == ViewKind::Snapshot {
            drop(fs);
            return self.fs.delete_snapshot(&name.name).unwrap();
        }
        if self.rng.chance(30) {
            drop(fs);
            return self.fs.abort_transaction(&name.name).unwrap();
        }
        match self.fs.commit_transaction(&name.name, &fs) {
            Ok(_) => {
                changed.iter().for_each(|ino| drop(self.main.insert(*ino, bytes[ino].clone())));
            }
            Err(CommitError::Conflict(_)) => {
                drop(fs);
                self.fs.abort_transaction(&name.name).unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn change(&mut self) {
        let inos: Vec<InodeId> = self.main.keys().copied().collect();
        let ino = *self.rng.pick(&inos);
        let at = self.rng.below(self.views.len() as u64 + 2) as usize;
        let is_txn = |view: &View| view.name.kind == ViewKind::Transaction;
        let view = (at < self.views.len() && is_txn(&self.views[at])).then_some(at);
        let opened = view.map(|at| self.open_view(at));
        let fs = opened.as_ref().unwrap_or(&self.fs);
        let bytes = match view {
            Some(at) => {
                self.views[at].changed.push(ino);
                self.views[at].bytes.get_mut(&ino).unwrap()
            }
            None => self.main.get_mut(&ino).unwrap(),
        };
        let mut rng = self.rng.clone();
        for _ in 0..rng.between(1, 4) {
            change_file(fs, ino, bytes, &mut rng);
        }
        if rng.chance(30) {
            fs.sync().unwrap();
        }
        self.rng = rng;
    }

    fn crash(&mut self) {
        // Nothing may be lost that was synced.
        let cut = self.rng.chance(50);
        if cut {
            for at in 0..self.views.len() {
                if self.views[at].name.kind == ViewKind::Transaction {
                    self.open_view(at).sync().unwrap();
                }
            }
            self.fs.sync().unwrap();
        }
        self.env =
            if cut { self.env.power_cut(self.rng.next_u64()) } else { self.env.process_kill() };
        self.fs = known(open(&self.env));
    }

    fn check(&mut self, what: &str) {
        for (ino, bytes) in &self.main {
            assert!(self.fs.contents(*ino) == *bytes, "{what}: the main tree, {ino}");
        }
        for (at, View { name, bytes, .. }) in self.views.iter().enumerate() {
            let fs = self.open_view(at);
            for (ino, bytes) in bytes {
                assert_eq!(fs.getattr(*ino).unwrap().size, bytes.len() as u64, "{what}: {name:?}");
                assert!(fs.contents(*ino) == *bytes, "{what}: {name:?}, {ino}");
            }
        }
    }
}

fn change_file(fs: &VarveFs, ino: InodeId, bytes: &mut Vec<u8>, rng: &mut Rng) {
    let len = bytes.len() as u64;
    let from = rng.below(len + BLOCK / 2);
    let most = *rng.pick(&[300, 9000, 2 * BLOCK]);
    let count = rng.below(most) + 1;
    let end = from + count;
    let handle = fs.open_as(ino, BOTH);
    match rng.below(8) {
        0 => {
            let len = if rng.chance(20) { 0 } else { from };
            fs.cut(ino, len);
            bytes.resize(len as usize, 0);
        }
        1 => {
            fs.fallocate(ino, handle, AllocateMode::PunchHole, from, count).unwrap();
            bytes[from.min(len) as usize..end.min(len) as usize].fill(0);
        }
        2 => {
            fs.fallocate(ino, handle, AllocateMode::Extend, from, count).unwrap();
            bytes.resize(len.max(end) as usize, 0);
        }
        3 => {
            let data = fs.lseek(ino, handle, 0, SeekFrom::Data);
            let hole = match data {
                Ok(data) => data as usize,
                Err(FsError::NoSuchOffset) => bytes.len(),
                Err(error) => panic!("{error:?}"),
            };
            assert!(bytes[..hole].iter().all(|byte| *byte == 0));
        }
        _ => {
            let new = rng.bytes(count as usize);
            fs.write(ino, handle, from, &new, false).unwrap();
            bytes.resize(len.max(end) as usize, 0);
            bytes[from as usize..end as usize].copy_from_slice(&new);
        }
    }
    fs.release(ino, handle).unwrap();
}

#[test]
fn views_of_large_files_are_what_they_were_and_commits_what_was_written() {
    for seed in 0..8 {
        let mut world = World::new(seed);
        for step in 0..50 {
            match world.rng.below(20) {
                0..3 if world.views.len() < 6 => world.begin(),
                3..5 if !world.views.is_empty() => world.end(),
                5 => world.crash(),
                _ => world.change(),
            }
            if step % 4 == 3 {
                world.check(&format!("seed {seed}, step {step}"));
            }
        }
        while !world.views.is_empty() {
            world.end();
            world.check(&format!("seed {seed}, at the end"));
        }
        sound(&world.fs);
        let left = world.env.files_raw().into_iter();
        let left = left.filter(|path| {
            path.starts_with(Path::new(STORE).join("kept"))
                || path.starts_with(Path::new(STORE).join("views"))
        });
        assert_eq!(left.collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new(), "seed {seed}");
    }
}

/// A crash at any point while something is kept, or while a view ends: what remains is as it was.
#[test]
fn every_crash_of_keeping_and_ending_leaves_views_as_they_were() {
    let mut crashes = 0;
    for n in 0.. {
        let mut world = World::new(7);
        for name in ["first", "second"] {
            world.fs.create_snapshot(name).unwrap();
            let name = ViewName { kind: ViewKind::Snapshot, name: name.to_owned() };
            world.views.push(View { name, bytes: world.main.clone(), changed: Vec::new() });
            if world.views.len() == 1 {
                let inos: Vec<InodeId> = world.main.keys().copied().collect();
                for ino in inos {
                    let bytes = world.main.get_mut(&ino).unwrap();
                    world.fs.put_at(ino, BLOCK + 5, b"between");
                    bytes[BLOCK as usize + 5..][..7].copy_from_slice(b"between");
                }
            }
        }
        world.fs.sync().unwrap();
        world.env.crash_after(world.env.op_count() + n);
        let inos: Vec<InodeId> = world.main.keys().copied().collect();
        let ended = keep_and_end(&world.fs, &inos);
        let crashed = world.env.crashed();
        assert!(crashed || ended.is_ok(), "{ended:?}");
        // One of them at each point, and all of them at neighbouring ones.
        let image = match n % 4 {
            0 => world.env.process_kill_within(n),
            1 => world.env.power_cut_keep_nothing(),
            2 => world.env.power_cut_keep_all(),
            _ => world.env.power_cut(n),
        };
        let fs = known(open(&image));
        for View { name, bytes, .. } in &world.views {
            match fs.open_view(name) {
                Ok(view) => {
                    let view = known(view);
                    for (ino, bytes) in bytes {
                        assert!(view.contents(*ino) == *bytes, "crash {n}: {name:?}, {ino}");
                    }
                }
                Err(error) => assert!(name.name == "second", "{error:?}"),
            }
        }
        sound(&fs);
        crashes += u32::from(crashed);
        if !crashed {
            break;
        }
    }
    assert!(crashes > 50, "{crashes}");
}

/// Changes blocks of all files, cuts one, removes another, and deletes the later snapshot.
fn keep_and_end(fs: &VarveFs, inos: &[InodeId]) -> Result<(), FsError> {
    for (i, ino) in inos.iter().enumerate() {
        let handle = fs.open(*ino, BOTH)?.handle;
        fs.write(*ino, handle, 0, b"after", false)?;
        fs.write(*ino, handle, BLOCK + 7, b"after", false)?;
        fs.release(*ino, handle)?;
        if i == 1 {
            let set = varve_vfs::SetAttr { size: Some(BLOCK + 100), ..Default::default() };
            fs.setattr(varve_vfs::Caller::ROOT, *ino, set)?;
        }
        if i == 2 {
            fs.unlink(ROOT, crate::support::name("f2"))?;
            fs.forget(*ino, 1);
            fs.sync()?;
        }
    }
    fs.delete_snapshot("second")?;
    fs.sync()
}

/// A change of one block in a file of 10 GiB costs one block, in the transaction, for a snapshot and at the commit.
#[test]
fn a_block_of_a_huge_file_costs_a_block() {
    const HUGE: u64 = 10 << 30;
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "huge");
    fs.cut(ino, HUGE);
    let size = |part: &str| -> u64 {
        let files = env.files_raw().into_iter();
        let files = files.filter(|path| path.to_string_lossy().contains(part));
        files.map(|path| env.stat(&path).unwrap().allocated).sum()
    };
    fs.create_snapshot("before").unwrap();
    let name = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = known(fs.open_view(&name).unwrap());
    let before = size("/objects/");
    view.put_at(ino, HUGE / 2 + 5, b"one block");
    view.sync().unwrap();
    let own = size("/views/");
    assert!(own <= BLOCK + (16 << 10), "{own} bytes in the transaction");
    let used = env.used_bytes();
    fs.commit_transaction(&name.name, &view).unwrap();
    let written = size("/objects/") - before;
    assert!(written <= BLOCK, "{written} bytes in the object");
    assert!(size("/kept/") <= BLOCK + (16 << 10), "{} bytes kept", size("/kept/"));
    assert_eq!(size("/views/"), 0);
    let grown = env.used_bytes().saturating_sub(used);
    assert!(grown < 4 * BLOCK, "{grown} bytes more in all");
    let handle = fs.open_as(ino, BOTH);
    assert_eq!(&fs.read(ino, handle, HUGE / 2, 20).unwrap()[5..14], b"one block");
    let before = ViewName { kind: ViewKind::Snapshot, name: "before".to_owned() };
    let before = known(fs.open_view(&before).unwrap());
    let seen = before.open_as(ino, crate::support::READ);
    assert_eq!(before.read(ino, seen, HUGE / 2, 20).unwrap()[..], [0; 20]);
    assert_eq!(before.getattr(ino).unwrap().size, HUGE);
}

/// Damaged records of one file in one view: the check names file and offset, what needs it fails, all else goes on, and
/// the view can be deleted.
#[test]
fn a_damaged_overlay_is_named_and_harms_its_view_alone() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let [first, other] = ["f0", "f1"].map(|name| {
        let ino = fs.mk(ROOT, name);
        fs.put_at(ino, 0, &vec![1; 4 * BLOCK as usize]);
        ino
    });
    fs.create_snapshot("before").unwrap();
    [first, other].iter().for_each(|ino| fs.put_at(*ino, 5, b"after"));
    fs.sync().unwrap();
    assert!(fs.check(&mut |_| ()).unwrap().is_spotless());
    drop(fs);
    let env = env.process_kill();
    let kept = |path: &std::path::PathBuf| path.ends_with(format!("{first}.blocks"));
    let path = env.files_raw().into_iter().find(kept).unwrap();
    env.damage(&path, 12_300, 1).unwrap();
    let fs = known(open(&env));
    let found = fs.check(&mut |_| ()).unwrap().findings;
    let [Finding::DamagedOverlay { path: named, detail, view, seen }] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((view.as_str(), seen.as_str()), ("snapshot before", "/f0"));
    assert!(*named == path.display().to_string() && detail.contains("damaged at offset 12288"));
    assert_eq!(&fs.contents(first)[5..10], b"after");
    let name = ViewName { kind: ViewKind::Snapshot, name: "before".to_owned() };
    let view = known(fs.open_view(&name).unwrap());
    let error = view.open(first, crate::support::READ).unwrap_err().to_string();
    assert!(error.contains(named) && error.contains("offset 12288"), "{error}");
    assert!(view.contents(other) == vec![1; 4 * BLOCK as usize]);
    drop(view);
    fs.delete_snapshot("before").unwrap();
    fs.put_at(first, 5, b"again");
    assert!(fs.check(&mut |_| ()).unwrap().is_spotless());
}

/// Has the kernel know `d/f`.
fn looked(fs: VarveFs) -> VarveFs {
    let dir = fs.find(ROOT, "d").unwrap().ino;
    assert!(matches!(fs.find(dir, "f"), Ok(_) | Err(FsError::NotFound)));
    fs
}

/// Whether `path` is in `kept/`, with this extension.
fn is_kept(path: &std::path::Path, extension: Option<&str>) -> bool {
    path.components().any(|part| part.as_os_str() == "kept")
        && path.extension().map(|own| own.to_str().unwrap()) == extension
}

/// Whether `len` bytes of a file can be read.
fn reads(view: &VarveFs, ino: InodeId, len: usize) -> bool {
    view.open(ino, crate::support::READ).is_ok_and(|opened| {
        let all = view.read(ino, opened.handle, 0, len);
        view.release(ino, opened.handle).unwrap();
        all.is_ok()
    })
}

/// What was kept for a snapshot was gone, or cut: the snapshot showed the bytes of later, or zeros, and no check said a word.
#[test]
fn what_is_kept_and_gone_or_cut_is_named_and_not_read() {
    const BLOCKS: u64 = 4;
    // How the main tree changes the file, and which file of `kept/` is damaged.
    for (shares, removed, extension) in
        [(false, false, Some("blocks")), (true, false, None), (false, true, None)]
    {
        for cut in [None, Some(0), Some(9000), Some(BLOCK + 3), Some(BLOCK * BLOCKS - 1)] {
            let env = sim_store(1, &FormatOptions::default());
            env.set_shares_room(shares);
            let fs = open(&env);
            let dir = fs.mk_dir(ROOT, "d");
            let ino = fs.mk(dir, "f");
            let before = vec![1; (BLOCKS * BLOCK) as usize];
            // It ends with a hole.
            fs.put_at(ino, 0, &before[..before.len() - 100]);
            fs.cut(ino, BLOCKS * BLOCK);
            fs.create_snapshot("first").unwrap();
            fs.create_snapshot("second").unwrap();
            let before = fs.contents(ino);
            match removed {
                true => fs.unlink(dir, name("f")).unwrap(),
                false => fs.put_at(ino, BLOCK * (BLOCKS - 1), &[2; BLOCK as usize]),
            }
            fs.sync().unwrap();
            fs.close().unwrap();
            drop(fs);
            let is_it = |path: &std::path::PathBuf| is_kept(path, extension);
            let path = env.files_raw().into_iter().find(is_it).unwrap();
            let fs = looked(open(&env));
            let names = ["first", "second"]
                .map(|name| ViewName { kind: ViewKind::Snapshot, name: name.to_owned() });
            let shown =
                names.each_ref().map(|name| looked(fs.open_view(name).unwrap()).contents(ino));
            assert!(shown.iter().all(|bytes| *bytes == before));
            assert!(fs.check(&mut |_| ()).unwrap().is_clean());
            fs.close().unwrap();
            drop(fs);
            match cut {
                Some(len) => env.truncate_raw(&path, len).unwrap(),
                None => env.remove_raw(&path).unwrap(),
            }
            let fs = looked(open(&env));
            let found = fs.check(&mut |_| ()).unwrap().findings;
            let [Finding::DamagedOverlay { path: named, view, seen, .. }] = &found[..] else {
                panic!("{shares} {removed} {cut:?}: {found:?}")
            };
            assert_eq!(
                (&**named, &**view, &**seen),
                (path.to_str().unwrap(), "snapshot second", "/d/f")
            );
            for name in &names {
                let view = looked(fs.open_view(name).unwrap());
                let is_read = reads(&view, ino, before.len());
                assert!(!is_read, "{shares} {removed} {cut:?}: {name:?}");
            }
            if !removed {
                // The main tree goes on, and nothing is kept in the place of what is lost.
                fs.put_at(ino, 5, b"again");
                assert_eq!(&fs.contents(ino)[5..10], b"again");
                let view = looked(fs.open_view(&names[1]).unwrap());
                assert!(view.open(ino, crate::support::READ).map(drop).is_err() || cut.is_some());
            }
            fs.delete_snapshot("second").unwrap();
            fs.delete_snapshot("first").unwrap();
            assert!(fs.check(&mut |_| ()).unwrap().is_clean(), "{shares} {removed} {cut:?}");
        }
    }
}
