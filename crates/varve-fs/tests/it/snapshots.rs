//! Snapshots of random trees with random changes between them: what is told of two states, against a comparison of both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::{ChangeKind, Diff, FormatOptions, MountOptions, VarveFs, ViewKind, ViewName};
use varve_testkit::fsops::{Generator, NodeDump, Session, TreePath, Universe, tree};
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{FileType, FsError, Vfs};

use crate::crash::{STORE, sim_store};
use crate::support::{Calls, ROOT};

/// Names with what they stand for.
struct Seen {
    /// By directory and name: the inode, and the path.
    names: BTreeMap<(InodeId, Vec<u8>), (InodeId, String)>,
    nodes: BTreeMap<InodeId, NodeDump>,
}

fn text(path: &TreePath) -> String {
    let names = path.0.iter().map(|name| format!("/{}", String::from_utf8_lossy(name)));
    let text: String = names.collect();
    if text.is_empty() { "/".to_owned() } else { text }
}

fn seen(fs: &VarveFs) -> Seen {
    let (mut names, mut nodes) = (BTreeMap::new(), BTreeMap::new());
    for (path, node) in tree(fs).unwrap().0 {
        let mut at = (ROOT, ROOT);
        for name in &path.0 {
            let name = varve_types::FileName::new(name).unwrap();
            let ino = fs.lookup(at.1, name).unwrap().attr.ino;
            fs.forget(ino, 1);
            at = (at.1, ino);
        }
        if let Some(name) = path.0.last() {
            names.insert((at.0, name.clone()), (at.1, text(&path)));
        }
        nodes.insert(at.1, node);
    }
    Seen { names, nodes }
}

/// What of a node is told when it differs.
fn compared(node: &NodeDump) -> NodeDump {
    let mut node = NodeDump { nlink: 0, first_path: TreePath::default(), ..node.clone() };
    node.times = [node.times[0], node.times[2], node.times[2]];
    if node.kind == FileType::Directory {
        node.times[0] = node.times[2];
        node.size = 0;
    }
    node
}

/// Checks that `diff` tells every difference of two states, and no name that neither came nor went.
fn check(before: &Seen, after: &Seen, diff: &Diff) {
    assert!(diff.complete);
    let paths_of = |these: &Seen, those: &Seen| -> BTreeSet<String> {
        let gone = these.names.iter().filter(|(name, _)| !those.names.contains_key(name));
        gone.map(|(_, (_, path))| path.clone()).collect()
    };
    let told = |kind| {
        let of_kind = diff.changes.iter().filter(move |change| change.change == kind);
        of_kind.map(|change| change.path.clone())
    };
    let renamed = diff.changes.iter().filter(|change| change.change == ChangeKind::Renamed);
    let from = renamed.map(|change| change.from.clone().unwrap());
    let removed: BTreeSet<String> = told(ChangeKind::Removed).chain(from).collect();
    assert_eq!(removed, paths_of(before, after), "{diff:?}");
    let added = told(ChangeKind::Added).chain(told(ChangeKind::Renamed));
    assert_eq!(added.collect::<BTreeSet<_>>(), paths_of(after, before), "{diff:?}");
    let changed: BTreeSet<String> = told(ChangeKind::Changed).collect();
    let mut changed_inodes = BTreeSet::new();
    for (name, (ino, path)) in &after.names {
        // What was elsewhere, where another file is now, counts as added.
        if changed.contains(path) || told(ChangeKind::Added).any(|added| added == *path) {
            changed_inodes.insert(*ino);
        }
        if let Some((other, _)) = before.names.get(name) {
            assert!(ino == other || changed.contains(path), "{path} is another file: {diff:?}");
        }
    }
    for (ino, node) in &after.nodes {
        let Some(was) = before.nodes.get(ino) else { continue };
        let is_told = changed_inodes.contains(ino) || (*ino == ROOT && changed.contains("/"));
        let differs = compared(was) != compared(node);
        assert!(is_told || !differs, "{ino} is {node:?}, was {was:?}: {diff:?}");
    }
}

pub(crate) fn open_with(env: &Arc<SimEnv>, options: MountOptions) -> VarveFs {
    let env: Arc<dyn Env> = env.clone();
    VarveFs::open(env, std::path::Path::new(STORE), options).unwrap()
}

/// Little memory, so that tables are made and merged.
fn tight() -> MountOptions {
    MountOptions { memory_budget_bytes: 1 << 19, ..MountOptions::default() }
}

/// Random operations on a file system, with files that stay open.
pub(crate) struct Work {
    generator: Generator,
    session: Session,
}

impl Work {
    pub(crate) fn new(seed: u64) -> Work {
        let generator = Generator::new(seed, Universe::default());
        Work { generator, session: Session::default() }
    }

    pub(crate) fn run(&mut self, fs: &VarveFs, ops: u64) {
        for _ in 0..ops {
            let op = self.generator.next_op();
            if self.session.apply(fs, &op).answer.is_ok() {
                self.generator.observe(&op);
            }
        }
    }

    pub(crate) fn release_all(&mut self, fs: &VarveFs) {
        self.session.release_all(fs).unwrap();
    }
}

fn view(fs: &VarveFs, name: &str) -> VarveFs {
    fs.open_view(&ViewName { kind: ViewKind::Snapshot, name: name.to_owned() }).unwrap()
}

#[test]
fn what_changed_between_snapshots_is_what_differs() {
    for seed in 0..16 {
        let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
        let env = sim_store(seed, &if seed % 2 == 0 { low } else { FormatOptions::default() });
        let mut fs = open_with(&env, tight());
        let (mut work, mut states, mut rng) = (Work::new(seed), Vec::new(), Rng::new(seed));
        for round in 0..5 {
            work.run(&fs, 20 + rng.below(150));
            let name = format!("{round}");
            fs.create_snapshot(&name).unwrap();
            states.push((Some(name.clone()), seen(&view(&fs, &name))));
            if rng.below(4) == 0 {
                let gone = states.remove(rng.below(states.len() as u64) as usize);
                fs.delete_snapshot(&gone.0.unwrap()).unwrap();
            }
            if rng.below(2) == 0 {
                work.release_all(&fs);
                fs.close().unwrap();
                fs = open_with(&env, tight());
            }
        }
        work.run(&fs, 60);
        states.push((None, seen(&fs)));
        for (at, (from, before)) in states.iter().enumerate() {
            let Some(from) = from else { continue };
            for (to, after) in &states[at..] {
                let diff = fs.snapshot_diff(from, to.as_deref()).unwrap();
                check(before, after, &diff);
                if to.as_deref() == Some(from) {
                    assert_eq!(diff.changes, []);
                } else if let Some(to) = to {
                    let reversed = fs.snapshot_diff(to, Some(from));
                    assert!(matches!(reversed, Err(FsError::Invalid(_))), "{reversed:?}");
                }
            }
        }
        assert!(matches!(fs.snapshot_diff("none", None), Err(FsError::NotFound)));
    }
}

/// A large file that is open for writing in both states has the same row in both.
#[test]
fn a_large_file_that_is_still_being_written_is_told() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open_with(&env, MountOptions::default());
    let ino = fs.mk(ROOT, "large");
    fs.put_at(ino, 0, &vec![1; 100_000]);
    let handle = fs.open_as(ino, crate::support::BOTH);
    fs.create_snapshot("one").unwrap();
    fs.write(ino, handle, 0, b"changed", false).unwrap();
    for to in [None, Some("two")] {
        if let Some(name) = to {
            fs.create_snapshot(name).unwrap();
        }
        let diff = fs.snapshot_diff("one", to).unwrap();
        let told: Vec<_> =
            diff.changes.iter().map(|change| (change.change, &*change.path)).collect();
        assert_eq!(told, [(ChangeKind::Changed, "/large")]);
    }
    fs.release(ino, handle).unwrap();
}
