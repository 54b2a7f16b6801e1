//! Random operations on files, in lockstep with a model, and the states that an owner finds that comes after a crash at any request.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use varve_env::{Allocate, Env, File, FileKind, OpenMode, Seek};
use varve_storage::{Fate, MemoryObjects, Request, transient};
use varve_testkit::rng::Rng;
use varve_testkit::soak;

use crate::support::{ANCHOR, format, own, own_later, path, read, write};

/// A file of the model: its bytes, and those that are durable.
#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    durable: Vec<u8>,
}

/// Names, and the files that they stand for; a directory has no file.
type Names = BTreeMap<String, Option<usize>>;
/// What is found after a crash: directories, and files with their bytes.
type State = BTreeMap<String, Option<Vec<u8>>>;

#[derive(Clone, Debug, Default)]
struct Model {
    names: Names,
    files: Vec<Content>,
}

impl Model {
    fn state(&self, of: impl Fn(&Content) -> &Vec<u8>) -> State {
        let state = |(name, file): (&String, &Option<usize>)| {
            (name.clone(), file.map(|file| of(&self.files[file]).clone()))
        };
        self.names.iter().map(state).collect()
    }

    fn parent_is_there(&self, name: &str) -> bool {
        name.rsplit_once('/').is_none_or(|(dir, _)| self.names.get(dir) == Some(&None))
    }
}

/// All names of a store, with their bytes.
fn found(env: &dyn Env) -> State {
    let (mut state, mut dirs) = (State::new(), vec![String::new()]);
    while let Some(dir) = dirs.pop() {
        for item in env.list(&path(&dir)).unwrap() {
            let name = item.name.to_str().unwrap();
            let name = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
            match item.kind {
                FileKind::Dir => {
                    dirs.push(name.clone());
                    state.insert(name, None);
                }
                _ => {
                    let bytes = read(env, &name).unwrap_or_else(|error| panic!("{name}: {error}"));
                    state.insert(name, Some(bytes));
                }
            }
        }
    }
    state
}

/// The objects after each request that changed some.
#[derive(Default)]
struct History(Vec<BTreeMap<String, Bytes>>);

/// The name of a file or directory, of few that there are.
fn name(rng: &mut Rng) -> String {
    let leaf = ["a", "b", "c"][rng.below(3) as usize];
    match rng.below(3) {
        0 => leaf.to_owned(),
        1 => format!("d/{leaf}"),
        _ => format!("d/e/{leaf}"),
    }
}

struct Run {
    env: Arc<dyn Env>,
    model: Model,
    open: Vec<(usize, Arc<dyn File>)>,
    rng: Rng,
    /// The durable state, and how many requests there had been when the sync that made it so began, and ended.
    durable: Vec<(usize, usize, State)>,
    history: Arc<Mutex<History>>,
}

impl Run {
    fn synced(&mut self, begun: usize) {
        let state = self.model.state(|content| &content.durable);
        let ended = self.history.lock().0.len();
        self.durable.push((begun, ended, state));
    }

    fn sync(&mut self, file: Option<usize>) {
        let begun = self.history.lock().0.len();
        match file {
            Some(index) => {
                let (id, handle) = &self.open[index];
                handle.sync_data().unwrap();
                let content = &mut self.model.files[*id];
                content.durable = content.bytes.clone();
            }
            None => self.env.sync_dir(Path::new(ANCHOR)).unwrap(),
        }
        self.synced(begun);
    }

    fn step(&mut self) {
        let name = name(&mut self.rng);
        let at = path(&name);
        let has_parent = self.model.parent_is_there(&name);
        match self.rng.below(15) {
            0 | 1 => {
                let opened = self.env.open(&at, OpenMode::CreateOrOpen);
                match self.model.names.get(&name) {
                    Some(Some(file)) => self.open.push((*file, opened.unwrap())),
                    Some(None) => assert!(opened.is_err()),
                    None if has_parent => {
                        self.model.names.insert(name, Some(self.model.files.len()));
                        self.open.push((self.model.files.len(), opened.unwrap()));
                        self.model.files.push(Content::default());
                    }
                    None => assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::NotFound),
                }
            }
            2 => {
                let dir = ["d", "d/e"][self.rng.below(2) as usize];
                let made = self.env.create_dir(&path(dir));
                let can = self.model.parent_is_there(dir) && !self.model.names.contains_key(dir);
                assert_eq!(made.is_ok(), can, "{dir}");
                if can {
                    self.model.names.insert(dir.to_owned(), None);
                }
            }
            3 => {
                let removed = self.env.remove_file(&at);
                assert_eq!(removed.is_ok(), matches!(self.model.names.get(&name), Some(Some(_))));
                if removed.is_ok() {
                    self.model.names.remove(&name);
                }
            }
            4 => {
                let to = crate::crash::name(&mut self.rng);
                let moved = self.env.rename(&at, &path(&to));
                let can = matches!(self.model.names.get(&name), Some(Some(_)))
                    && self.model.parent_is_there(&to)
                    && self.model.names.get(&to) != Some(&None);
                assert_eq!(moved.is_ok(), can, "{name} to {to}: {moved:?}");
                if can && name != to {
                    let file = self.model.names.remove(&name).unwrap();
                    self.model.names.insert(to, file);
                }
            }
            5 => self.rename_dir(),
            6 => self.sync(None),
            _ if self.open.is_empty() => {}
            7 => {
                let index = self.rng.below(self.open.len() as u64) as usize;
                self.open.swap_remove(index);
            }
            8 | 9 => {
                let index = self.rng.below(self.open.len() as u64) as usize;
                self.sync(Some(index));
            }
            10 => self.share(),
            _ => self.write(),
        }
    }

    fn rename_dir(&mut self) {
        let (from, to) = ("d/e", "d2");
        let moved = self.env.rename(&path(from), &path(to));
        let names = &self.model.names;
        let is_free = !names.keys().any(|name| name.starts_with("d2/"));
        let can = names.get(from) == Some(&None) && is_free;
        assert_eq!(moved.is_ok(), can, "{moved:?}");
        if can {
            let below = |name: &String| name == from || name.starts_with("d/e/");
            let names: Vec<_> =
                self.model.names.keys().filter(|name| below(name)).cloned().collect();
            for name in names {
                let file = self.model.names.remove(&name).unwrap();
                self.model.names.insert(name.replacen(from, to, 1), file);
            }
        }
    }

    fn share(&mut self) {
        let (from, to) = (self.rng.below(self.open.len() as u64), self.open.len() as u64);
        let (from, to) = (from as usize, self.rng.below(to) as usize);
        let (source, target) = (self.open[from].clone(), self.open[to].clone());
        let is_empty = self.model.files[target.0].bytes.is_empty();
        if source.0 != target.0 && is_empty {
            let has_name = self.model.names.values().any(|file| *file == Some(source.0));
            assert_eq!(target.1.share_all(&*source.1).unwrap(), has_name);
            if has_name {
                self.model.files[target.0].bytes = self.model.files[source.0].bytes.clone();
            }
        }
    }

    fn write(&mut self) {
        let index = self.rng.below(self.open.len() as u64) as usize;
        let (id, file) = self.open[index].clone();
        let bytes = &mut self.model.files[id].bytes;
        let rng = &mut self.rng;
        let offset = rng.below(bytes.len() as u64 + 9);
        match rng.below(8) {
            0 => {
                file.set_len(offset).unwrap();
                bytes.resize(offset as usize, 0);
            }
            1 => {
                let len = 1 + rng.below(300_000);
                file.allocate(Allocate::PunchHole, offset, len).unwrap();
                let end = bytes.len().min((offset + len) as usize);
                bytes[(offset as usize).min(end)..end].fill(0);
            }
            kind => {
                let most = match (kind, rng.below(20)) {
                    // Parts of several objects.
                    (2, 0) => 9_000_000,
                    (2, _) => 700_000,
                    _ => 3000,
                };
                let len = rng.below(most) as usize;
                let new: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8 | 1).collect();
                file.write_all_at(&new, offset).unwrap();
                if len > 0 {
                    let end = offset as usize + len;
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[offset as usize..end].copy_from_slice(&new);
                }
            }
        }
        let mut read = vec![0; bytes.len() + 5];
        assert_eq!(file.read_at(&mut read, 0).unwrap(), bytes.len());
        assert!(read[..bytes.len()] == bytes[..], "file {id}");
        let data = file.seek(Seek::Data, 0).ok();
        let first = bytes.iter().position(|byte| *byte != 0).map(|at| at as u64);
        assert!(data.zip(first).is_none_or(|(data, first)| data <= first), "{data:?} {first:?}");
    }
}

/// Remembers the objects after each request that changes some, and lets one in `one_in` fail, half of those after
/// they had their effect.
fn watched(objects: &Arc<MemoryObjects>, seed: u64, one_in: u64) -> Arc<Mutex<History>> {
    let history = Arc::new(Mutex::new(History::default()));
    let (watched, all, rng) =
        (Arc::clone(&history), Arc::downgrade(objects), Mutex::new(Rng::new(seed)));
    objects.decide(move |request| {
        // Before the request: the effect of the one before is complete.
        let mut history = watched.lock();
        let objects = all.upgrade().unwrap().objects();
        if history.0.last() != Some(&objects) {
            history.0.push(objects);
        }
        let mut rng = rng.lock();
        let is_list = matches!(request, Request::List(_));
        match rng.below(2 * one_in) {
            0 => Fate::Lost(transient("lost")),
            1 if !is_list => Fate::Unanswered(transient("not answered")),
            _ => Fate::Answered,
        }
    });
    history
}

/// Whatever a crash left is found and removed, and nothing else.
fn nothing_is_left(objects: &Arc<MemoryObjects>) {
    let state = found(&*own_later(objects, 0));
    for hours in 1..4 {
        let env = own_later(objects, hours * 3600);
        env.collect().unwrap();
        env.close().unwrap();
    }
    let env = own_later(objects, 5 * 3600);
    let collected = env.collect().unwrap();
    let left: Vec<_> = collected.unneeded.iter().map(|object| object.name.as_str()).collect();
    assert!(!left.iter().any(|name| name.starts_with("data/")), "{left:?}");
    // The close before has left a root, some tables and records behind.
    assert!(collected.unneeded.iter().all(|object| object.since.is_some()), "{collected:?}");
    assert!(objects.objects().len() < 100, "{:?}", objects.objects().keys());
    assert!(found(&*env) == state);
}

fn run(seed: u64) -> usize {
    let objects = format();
    let history = watched(&objects, seed, 20);
    let env = own(&objects, seed).unwrap();
    let begun = Model::default();
    let mut run = Run {
        env: Arc::<varve_storage::RemoteEnv>::clone(&env),
        model: begun,
        open: Vec::new(),
        rng: Rng::new(seed),
        durable: vec![(0, 0, State::new())],
        history,
    };
    for _ in 0..150 {
        run.step();
    }
    assert_eq!(found(&*env), run.model.state(|content| &content.bytes));
    run.open.clear();
    for content in &mut run.model.files {
        content.durable.clone_from(&content.bytes);
    }
    let begun = run.history.lock().0.len();
    env.close().unwrap();
    // Seen by the next request alone.
    read(&*own(&objects, 1).unwrap(), "none").unwrap_err();
    run.synced(begun);
    let states = std::mem::take(&mut run.history.lock().0);
    let last = run.durable.len() - 1;
    for (count, objects) in states.iter().enumerate() {
        let objects = Arc::new(MemoryObjects::with(objects.clone()));
        let Ok(env) = own(&objects, seed) else { panic!("seed {seed}, after {count} requests") };
        let state = found(&*env);
        // The state of the last sync that was done by then, or of one that had begun.
        let done = run.durable.iter().rposition(|(_, ended, _)| *ended <= count).unwrap();
        let begun = run.durable.iter().rposition(|(begun, ..)| *begun <= count + 1).unwrap();
        let allowed = &run.durable[done..=begun.max(done)];
        let fits = allowed.iter().any(|(.., durable)| *durable == state);
        assert!(
            fits,
            "seed {seed}, after {count} of {} requests, syncs {done} to {begun} of {last}: {:?}",
            states.len(),
            state
                .iter()
                .map(|(name, bytes)| (name, bytes.as_ref().map(Vec::len)))
                .collect::<Vec<_>>()
        );
        // And it can be written to.
        write(&*env, "more", b"more").unwrap();
        env.close().unwrap();
        if count % 20 == 7 {
            nothing_is_left(&objects);
        }
    }
    states.len()
}

#[test]
fn a_crash_at_any_request_leaves_what_was_synced() {
    let states: usize = (0..12).map(run).sum();
    assert!(states > 500, "{states}");
}

/// Other seeds of the same, for as long as [`soak()`] says.
#[test]
#[ignore = "a soak"]
fn soak_crashes() {
    println!("{}", soak(|seed| assert!(run(seed) > 0)));
}
