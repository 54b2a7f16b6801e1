//! Followers of an owner on storage in memory, seen through the caches of a kernel.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

use varve_env::sim::SimEnv;
use varve_fs::{FormatOptions, MountOptions, format};
use varve_storage::{Fate, MemoryObjects, Owner, Remote, Retry, StoreOptions};
use varve_testkit::rng::Rng;
use varve_types::FileName;
use varve_vfs::{Caller, OpenFlags, RenameMode};

use super::*;

const STORE: &str = "/store";
const AGE: Duration = Duration::from_secs(600);
const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    append: false,
    appends: false,
    truncate: false,
    exclusive: false,
    sync: false,
    execute: false,
};
const WRITE: OpenFlags = OpenFlags { write: true, ..READ };

/// Files by path: inode and bytes; directories by path: inode and nothing.
type Tree = BTreeMap<String, (InodeId, Option<Vec<u8>>)>;

/// A store, its owner on one machine, and its follower on another.
struct World {
    objects: Arc<MemoryObjects>,
    machines: [Arc<SimEnv>; 2],
    owner: Option<(Arc<RemoteEnv>, VarveFs)>,
    follower: Arc<Follower>,
    kernel: Arc<Kernel>,
}

fn remote(objects: &Arc<MemoryObjects>) -> Remote {
    let objects = Arc::<MemoryObjects>::clone(objects);
    let retry = Retry { patience: Duration::ZERO, ..Retry::default() };
    let options =
        StoreOptions { checkpoint_records: 7, reader_age: AGE, ..StoreOptions::default() };
    Remote { objects, options, retry, cache: None }
}

fn own(
    objects: &Arc<MemoryObjects>,
    machine: &Arc<SimEnv>,
    is_dead: bool,
) -> io::Result<Arc<RemoteEnv>> {
    let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(machine);
    let mut remote = remote(objects);
    remote.options.take_over = true;
    RemoteEnv::own(machine, Path::new(STORE), remote, Owner::default(), move |_| is_dead)
}

fn opened(env: Arc<RemoteEnv>) -> VarveFs {
    VarveFs::open(env, Path::new(STORE), MountOptions::default()).unwrap()
}

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

impl World {
    fn new(seed: u64) -> World {
        let machines = [SimEnv::new(seed), SimEnv::new(seed + 1)];
        for machine in &machines {
            machine.create_dir(Path::new(STORE)).unwrap();
        }
        let objects = Arc::new(MemoryObjects::default());
        let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(&machines[0]);
        varve_storage::format(&machine, &remote(&objects)).unwrap();
        let options =
            FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
        let env = own(&objects, &machines[0], true).unwrap();
        format(&(Arc::<RemoteEnv>::clone(&env) as Arc<dyn Env>), Path::new(STORE), &options)
            .unwrap();
        let owner = Some((Arc::clone(&env), opened(env)));
        let reader: Arc<dyn Env> = Arc::<SimEnv>::clone(&machines[1]);
        let read = RemoteEnv::read(reader, Path::new(STORE), remote(&objects)).unwrap();
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let open = move |env| Ok(VarveFs::open(env, Path::new(STORE), options.clone())?);
        let follower = Arc::new(Follower::new(read, Box::new(open)).unwrap());
        let kernel = Arc::new(Kernel::default());
        *follower.front.write() = Some(Arc::<Kernel>::clone(&kernel));
        World { objects, machines, owner, follower, kernel }
    }

    fn fs(&self) -> &VarveFs {
        &self.owner.as_ref().unwrap().1
    }

    fn pass(&self, time: Duration) {
        self.machines.iter().for_each(|machine| machine.sleep(time));
    }

    /// Makes the bytes of a file in the root, durably.
    fn write(&self, path: &str, bytes: &[u8]) {
        let fs = self.fs();
        let ino = match fs.lookup(InodeId::ROOT, name(path)) {
            Ok(entry) => entry.attr.ino,
            Err(_) => {
                let flags = OpenFlags { exclusive: true, ..WRITE };
                let (entry, opened) =
                    fs.create(Caller::ROOT, InodeId::ROOT, name(path), 0o644, flags).unwrap();
                fs.release(entry.attr.ino, opened.handle).unwrap();
                entry.attr.ino
            }
        };
        put(fs, ino, 0, bytes);
        fs.sync().unwrap();
    }

    fn reads(&self) -> u64 {
        let counts = self.follower.remote().counts().requests;
        counts.reads + counts.lists
    }

    fn old_states(&self) -> usize {
        self.follower.old.lock().len()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.objects.decide(|_| Fate::Answered);
        self.follower.close().unwrap();
    }
}

fn put(fs: &VarveFs, ino: InodeId, offset: u64, bytes: &[u8]) {
    let opened = fs.open(ino, WRITE).unwrap();
    fs.write_all(ino, opened.handle, offset, bytes, false).unwrap();
    fs.fsync(ino, opened.handle, false).unwrap();
    fs.release(ino, opened.handle).unwrap();
}

/// All that a file system shows.
fn tree_of(fs: &dyn Vfs) -> Tree {
    let mut tree = Tree::new();
    let mut dirs = vec![(String::new(), InodeId::ROOT)];
    while let Some((path, dir)) = dirs.pop() {
        for (child, kind) in list(fs, dir) {
            let ino = fs.lookup(dir, name(&child)).unwrap().attr.ino;
            let path = format!("{path}/{child}");
            let bytes = (kind != FileType::Directory).then(|| {
                let opened = fs.open(ino, READ).unwrap();
                let bytes = fs.read(ino, opened.handle, 0, 1 << 20).unwrap().to_vec();
                fs.release(ino, opened.handle).unwrap();
                bytes
            });
            if bytes.is_none() {
                dirs.push((path.clone(), ino));
            }
            tree.insert(path, (ino, bytes));
            fs.forget(ino, 1);
        }
    }
    tree
}

fn list(fs: &dyn Vfs, dir: InodeId) -> Vec<(String, FileType)> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, false, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.kind));
        }
        true
    })
    .unwrap();
    names
}

/// What a kernel keeps until it is told otherwise.
#[derive(Default)]
struct Kernel {
    names: Mutex<HashMap<(InodeId, String), InodeId>>,
    attrs: Mutex<HashMap<InodeId, Attr>>,
    lists: Mutex<HashMap<InodeId, Vec<(String, FileType)>>>,
    pages: Mutex<HashMap<InodeId, Vec<u8>>>,
    lookups: Mutex<HashMap<InodeId, u64>>,
}

impl Front for Kernel {
    fn names_changed(&self) {
        self.names.lock().clear();
    }

    fn attributes_changed(&self, ino: InodeId) {
        self.attrs.lock().remove(&ino);
    }

    fn listing_changed(&self, dir: InodeId) {
        self.attrs.lock().remove(&dir);
        self.lists.lock().remove(&dir);
    }
}

impl Kernel {
    fn lookup(&self, fs: &Follower, dir: InodeId, text: &str) -> FsResult<InodeId> {
        if let Some(ino) = self.names.lock().get(&(dir, text.to_owned())) {
            return Ok(*ino);
        }
        let Entry { attr, .. } = fs.lookup(dir, name(text))?;
        *self.lookups.lock().entry(attr.ino).or_default() += 1;
        self.names.lock().insert((dir, text.to_owned()), attr.ino);
        self.attrs.lock().insert(attr.ino, attr);
        Ok(attr.ino)
    }

    fn getattr(&self, fs: &Follower, ino: InodeId) -> FsResult<Attr> {
        if let Some(attr) = self.attrs.lock().get(&ino) {
            return Ok(*attr);
        }
        let attr = fs.getattr(ino)?;
        self.attrs.lock().insert(ino, attr);
        Ok(attr)
    }

    fn list(&self, fs: &Follower, dir: InodeId) -> Vec<(String, FileType)> {
        self.lists.lock().entry(dir).or_insert_with(|| list(fs, dir)).clone()
    }

    fn open(&self, fs: &Follower, ino: InodeId) -> FsResult<Handle> {
        let opened = fs.open(ino, READ)?;
        if opened.reread {
            self.pages.lock().remove(&ino);
        }
        Ok(opened.handle)
    }

    /// Reads as much as the file has by its attributes.
    fn read(&self, fs: &Follower, ino: InodeId, handle: Handle) -> FsResult<Vec<u8>> {
        let size = self.getattr(fs, ino)?.size as usize;
        let mut pages = match self.pages.lock().get(&ino) {
            Some(pages) => pages.clone(),
            None => fs.read(ino, handle, 0, 1 << 20)?.to_vec(),
        };
        self.pages.lock().insert(ino, pages.clone());
        pages.resize(size, 0);
        Ok(pages)
    }

    /// Forgets everything but what is `kept`.
    fn shrink(&self, fs: &Follower, kept: &dyn Fn(InodeId) -> bool) {
        self.names.lock().clear();
        self.lookups.lock().retain(|ino, lookups| {
            if !kept(*ino) {
                self.attrs.lock().remove(ino);
                self.pages.lock().remove(ino);
                self.lists.lock().remove(ino);
                fs.forget(*ino, *lookups);
            }
            kept(*ino)
        });
    }

    fn tree(&self, fs: &Follower) -> Tree {
        let mut tree = Tree::new();
        let mut dirs = vec![(String::new(), InodeId::ROOT)];
        while let Some((path, dir)) = dirs.pop() {
            for (child, kind) in self.list(fs, dir) {
                let ino = self.lookup(fs, dir, &child).unwrap();
                let path = format!("{path}/{child}");
                let bytes = (kind != FileType::Directory).then(|| {
                    let handle = self.open(fs, ino).unwrap();
                    let bytes = self.read(fs, ino, handle).unwrap();
                    fs.release(ino, handle).unwrap();
                    bytes
                });
                if bytes.is_none() {
                    dirs.push((path.clone(), ino));
                }
                tree.insert(path, (ino, bytes));
            }
        }
        tree
    }
}

/// A tree, for messages.
fn told(tree: &Tree) -> String {
    let tell = |(path, (ino, bytes)): (&String, &(InodeId, Option<Vec<u8>>))| {
        let bytes = bytes
            .as_ref()
            .map(|bytes| (bytes.len(), bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()));
        format!("{path} {ino} {bytes:?}\n")
    };
    tree.iter().map(tell).collect()
}

/// Makes one change in the owner's file system.
fn change(fs: &VarveFs, tree: &Tree, rng: &mut Rng) {
    let dirs: Vec<InodeId> = tree
        .values()
        .filter(|(_, bytes)| bytes.is_none())
        .map(|(ino, _)| *ino)
        .chain([InodeId::ROOT])
        .collect();
    let files: Vec<InodeId> =
        tree.values().filter(|(_, bytes)| bytes.is_some()).map(|(ino, _)| *ino).collect();
    let (dir, other) = (*rng.pick(&dirs), *rng.pick(&dirs));
    let (one, two) = (format!("n{}", rng.below(4)), format!("n{}", rng.below(4)));
    for ino in dirs.iter().chain(&files) {
        let _ = fs.lookup_inode(*ino);
    }
    match rng.below(9) {
        0 => drop(fs.mkdir(Caller::ROOT, dir, name(&one), 0o755)),
        1 | 2 => {
            let flags = OpenFlags { exclusive: true, ..WRITE };
            if let Ok((entry, opened)) = fs.create(Caller::ROOT, dir, name(&one), 0o644, flags) {
                fs.release(entry.attr.ino, opened.handle).unwrap();
                let bytes = vec![rng.below(256) as u8; rng.below(20_000) as usize];
                put(fs, entry.attr.ino, 0, &bytes);
            }
        }
        3 => drop(fs.unlink(dir, name(&one))),
        4 => drop(fs.rmdir(dir, name(&one))),
        5 | 6 => drop(fs.rename(dir, name(&one), other, name(&two), RenameMode::Replace)),
        _ if files.is_empty() => {}
        _ => {
            let bytes = vec![rng.below(256) as u8; 1 + rng.below(6000) as usize];
            put(fs, *rng.pick(&files), rng.below(6000), &bytes);
        }
    }
}

/// A file that stays open.
struct Held {
    ino: InodeId,
    handle: Handle,
    bytes: Vec<u8>,
    /// When its state was known to be the newest one.
    newest_at: Duration,
}

/// An owner that changes its store at random, and what a follower has shown of it.
struct Walk<'w> {
    world: &'w World,
    seed: u64,
    rng: Rng,
    /// The states that the owner had.
    states: Vec<Tree>,
    /// The last of them that the follower has shown.
    shown: usize,
    open: Vec<Held>,
    cwd: InodeId,
    /// How often an open file had other bytes than the owner's.
    kept_apart: usize,
}

impl Walk<'_> {
    fn change(&mut self) {
        for _ in 0..self.rng.below(4) {
            change(self.world.fs(), self.states.last().unwrap(), &mut self.rng);
            self.world.fs().sync().unwrap();
            self.states.push(tree_of(self.world.fs()));
        }
    }

    /// A file whose state is too old for readers has ended, and no other.
    fn drop_ended(&mut self) {
        let (follower, seed) = (&*self.world.follower, self.seed);
        let now = follower.now().moment().monotonic;
        self.open.retain(|held| {
            let is_alive = follower.opened(held.handle).is_ok();
            assert!(is_alive || now - held.newest_at >= AGE, "seed {seed}: a file ends early");
            if !is_alive {
                follower.release(InodeId::ROOT, held.handle).unwrap();
            }
            is_alive
        });
    }

    /// Whether `seen` is this state, but for files that are open.
    fn is_state(&self, state: &Tree, seen: &Tree) -> bool {
        state.len() == seen.len()
            && state.iter().zip(seen).all(|((path, (ino, bytes)), (its, (of, read)))| {
                let held = self.open.iter().find(|held| held.ino == *ino);
                (path, ino) == (its, of)
                    && read.as_ref() == held.map_or(bytes.as_ref(), |held| Some(&held.bytes))
            })
    }

    /// It shows a state that the owner had, no older than the one before, and the newest one if it `must_be_newest`.
    fn look(&mut self, must_be_newest: bool) -> Tree {
        let seed = self.seed;
        let seen = self.world.kernel.tree(&self.world.follower);
        let newest = self.states.last().unwrap();
        let at = self.states[self.shown..].iter().position(|state| self.is_state(state, &seen));
        let Some(at) = at else {
            panic!("seed {seed}: no such state as {}, at most {}", told(&seen), told(newest))
        };
        assert!(
            !must_be_newest || self.is_state(newest, &seen),
            "seed {seed}: it does not move on"
        );
        self.shown += at;
        seen
    }

    fn open_one(&mut self, seen: &Tree) {
        let follower = &*self.world.follower;
        let files: Vec<_> =
            seen.values().filter_map(|(ino, bytes)| Some((*ino, bytes.clone()?))).collect();
        if self.open.len() < 4 && !files.is_empty() {
            let (ino, bytes) = self.rng.pick(&files).clone();
            let handle = self.world.kernel.open(follower, ino).unwrap();
            let newest_at = follower.opened(handle).unwrap().state.newest_at.lock().monotonic;
            self.open.push(Held { ino, handle, bytes, newest_at });
        }
    }

    /// Open files read the same. Some are closed then.
    fn read_open(&mut self) {
        let (follower, kernel, seed) = (&*self.world.follower, &self.world.kernel, self.seed);
        let newest = self.states.last().unwrap();
        self.open.retain(|Held { ino, handle, bytes, .. }| {
            assert!(kernel.read(follower, *ino, *handle).unwrap() == *bytes, "seed {seed}");
            let direct = follower.read(*ino, *handle, 0, 1 << 20).unwrap();
            assert!(direct == bytes[..], "seed {seed}: other bytes of an open file");
            let current = newest.values().find(|(of, _)| of == ino);
            let is_apart = current.is_none_or(|(_, now)| now.as_ref() != Some(bytes));
            self.kept_apart += usize::from(is_apart);
            let stays = self.rng.below(8) > 0;
            if !stays {
                follower.release(*ino, *handle).unwrap();
            }
            stays
        });
    }

    /// A directory is used by its number, wherever it is now.
    fn use_directory(&mut self, seen: &Tree) {
        let (follower, kernel, seed) = (&*self.world.follower, &self.world.kernel, self.seed);
        let cwd = self.cwd;
        let is_there = cwd == InodeId::ROOT || seen.values().any(|(ino, _)| *ino == cwd);
        match kernel.getattr(follower, cwd) {
            Ok(attr) => {
                assert!(is_there, "seed {seed}");
                assert_eq!(attr.size as usize, kernel.list(follower, cwd).len(), "seed {seed}");
            }
            Err(error) => assert!(!is_there && matches!(error, FsError::Stale), "{error}"),
        }
        if !is_there || self.rng.below(6) == 0 {
            let dirs = seen.values().filter(|(_, bytes)| bytes.is_none()).map(|(ino, _)| *ino);
            let dirs: Vec<InodeId> = dirs.chain([InodeId::ROOT]).collect();
            self.cwd = *self.rng.pick(&dirs);
        }
    }

    /// The kernel forgets what no program uses, and the follower knows nothing else then.
    fn shrink(&self) {
        let (follower, cwd) = (&*self.world.follower, self.cwd);
        let is_used = |ino| ino == cwd || self.open.iter().any(|held| held.ino == ino);
        self.world.kernel.shrink(follower, &is_used);
        let known = follower.known.lock();
        assert!(known.keys().all(|ino| is_used(*ino)), "seed {}", self.seed);
    }
}

/// An owner changes its store at random, and a follower moves on at random moments. It shows only states that the owner had, each at
/// most as old as the one before; what is open keeps its bytes; nothing that it needs is removed; and it knows what the kernel knows.
fn run(seed: u64) -> (usize, usize) {
    let world = World::new(seed);
    let mut walk = Walk {
        world: &world,
        seed,
        rng: Rng::new(seed),
        states: vec![tree_of(world.fs())],
        shown: 0,
        open: Vec::new(),
        cwd: InodeId::ROOT,
        kept_apart: 0,
    };
    let mut moved = 0;
    for _ in 0..160 {
        walk.change();
        // A change without a later time of change would not be seen in pages that are kept.
        world.pass(Duration::from_secs(1 + walk.rng.below(90)));
        let steps = walk.rng.below(2) == 0;
        if steps {
            moved += usize::from(world.follower.step().unwrap());
        }
        walk.drop_ended();
        let seen = walk.look(steps && world.old_states() < OLD_STATES_MAX);
        walk.open_one(&seen);
        walk.read_open();
        walk.use_directory(&seen);
        if walk.rng.below(5) == 0 {
            walk.shrink();
        }
    }
    for Held { ino, handle, .. } in walk.open {
        world.follower.release(ino, handle).unwrap();
    }
    world.kernel.shrink(&world.follower, &|_| false);
    assert!(world.follower.known.lock().is_empty(), "seed {seed}");
    world.follower.step().unwrap();
    assert_eq!(world.old_states(), 0, "seed {seed}");
    (moved, walk.kept_apart)
}

#[test]
fn a_follower_shows_only_states_that_the_owner_had() {
    let runs = (0..6).map(run).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    assert!(runs.0 > 100 && runs.1 > 100, "{runs:?}");
}

#[test]
fn an_idle_follower_makes_one_request_for_each_look() {
    let world = World::new(1);
    world.write("f", b"1");
    assert!(world.follower.step().unwrap());
    let reads = world.reads();
    for _ in 0..50 {
        world.pass(Duration::from_secs(5));
        assert!(!world.follower.step().unwrap());
    }
    assert_eq!(world.reads() - reads, 50);
}

/// What says that there is a later state may be gone when a follower comes back.
#[test]
fn a_follower_that_was_away_for_long_moves_on() {
    let world = World::new(2);
    world.write("f", b"1");
    assert!(world.follower.step().unwrap());
    for at in 0..200u64 {
        world.write("f", &at.to_le_bytes());
        world.pass(Duration::from_secs(10));
    }
    assert!(!world.follower.remote().is_behind().unwrap(), "the record is still there");
    assert!(world.follower.step().unwrap());
    assert_eq!(tree_of(&*world.follower), tree_of(world.fs()));
}

#[test]
fn open_files_of_old_states_end_with_the_age_of_readers() {
    let world = World::new(3);
    let (follower, kernel) = (&*world.follower, &*world.kernel);
    let mut handles = Vec::new();
    world.write("f0", b"0");
    for at in 0..8u8 {
        world.write(&format!("f{at}"), &[at]);
        world.pass(Duration::from_secs(1));
        let is_moved = follower.step().unwrap();
        assert_eq!(is_moved, usize::from(at) <= OLD_STATES_MAX, "{at}");
        assert_eq!(world.old_states(), usize::from(at).min(OLD_STATES_MAX));
        if is_moved {
            let ino = kernel.lookup(follower, InodeId::ROOT, &format!("f{at}")).unwrap();
            handles.push((ino, kernel.open(follower, ino).unwrap()));
        }
        world.write(&format!("f{at}"), b"later");
    }
    let read = |(ino, handle): (InodeId, Handle)| follower.read(ino, handle, 0, 100);
    for (at, handle) in handles.iter().enumerate() {
        assert_eq!(read(*handle).unwrap()[..], [at as u8]);
    }
    world.pass(AGE);
    assert!(follower.step().unwrap());
    for handle in &handles[..OLD_STATES_MAX] {
        assert!(matches!(read(*handle), Err(FsError::Stale)));
    }
    // Opened again it is as the owner has it; the handle that is left may be released.
    let (ino, old) = handles[0];
    let again = kernel.open(follower, ino).unwrap();
    assert_eq!(kernel.read(follower, ino, again).unwrap(), b"later");
    for (ino, handle) in handles.into_iter().chain([(ino, again)]) {
        follower.release(ino, handle).unwrap();
    }
    assert!(matches!(read((ino, old)), Err(FsError::BadHandle)));
    follower.step().unwrap();
    assert_eq!(world.old_states(), 0);
}

#[test]
fn a_follower_stays_at_its_state_while_the_storage_is_away() {
    let world = World::new(4);
    world.write("f", b"before");
    assert!(world.follower.step().unwrap());
    let before = tree_of(&*world.follower);
    world.write("f", b"after!");
    let refuse = || Fate::Lost(io::Error::from(io::ErrorKind::ConnectionRefused));
    world.objects.decide(move |_| refuse());
    for _ in 0..3 {
        world.follower.step().unwrap_err();
        assert_eq!(tree_of(&*world.follower), before);
    }
    // It fails in the middle of opening the later state, too.
    for answered in 1..40 {
        let mut left = answered;
        world.objects.decide(move |_| {
            left -= 1;
            if left < 0 { refuse() } else { Fate::Answered }
        });
        match world.follower.step() {
            Ok(_) => break,
            Err(_) => assert_eq!(tree_of(&*world.follower), before),
        }
    }
    world.objects.decide(|_| Fate::Answered);
    world.follower.step().unwrap();
    assert_eq!(tree_of(&*world.follower), tree_of(world.fs()));
}

#[test]
fn a_follower_goes_on_with_the_next_owner() {
    let mut world = World::new(5);
    for round in 0..5u8 {
        world.write("f", &[round; 9000]);
        world.write("unfollowed", &[round]);
        if round % 2 == 0 {
            world.follower.step().unwrap();
        }
        // It dies, and leaves what it synced.
        std::mem::forget(world.owner.take());
        world.machines[0] = SimEnv::new(100 + u64::from(round));
        world.machines[0].create_dir(Path::new(STORE)).unwrap();
        let env = own(&world.objects, &world.machines[0], true).unwrap();
        world.owner = Some((Arc::clone(&env), opened(env)));
        assert!(world.follower.step().unwrap());
        assert_eq!(tree_of(&*world.follower), tree_of(world.fs()));
    }
}
