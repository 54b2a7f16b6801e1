//! What a single fault of the storage below costs: a flipped bit, a zeroed page, a file that is cut, removed or replaced.
//!
//! 1. A store is made with files of all sizes, attributes, links, snapshots, clones, a transaction, limits and dictionaries; it is closed, or
//!    its daemon dies.
//! 2. Each of its files is damaged in each way, in a copy; the copy is repaired. A second repair has nothing to do.
//! 3. All that can be read is compared with what was there. What is lost is counted by kinds; what is wrong (another byte, attribute or
//!    target than it was) must be among what the repair named.
//!
//! `cargo xtask soak damage` does it for a store with 2,000 files, and prints a table and JSON of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_engine::inspect::{Inspection, inspect};
use varve_engine::repair::EngineRepair;
use varve_engine::{Direction, KeyRange};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::fsck::Finding;
use varve_fs::fsck::repair::{RepairReport, repair_engine, repair_store};
use varve_fs::fsck::{CheckOptions, Report, check_store};
use varve_fs::{
    FormatOptions, MountOptions, Superblock, TransactionOptions, VarveFs, ViewKind, ViewName,
};
use varve_testkit::rng::Rng;
use varve_types::{InodeId, Timestamp};
use varve_vfs::{Caller, FileType, FsResult, TreeLimits, Vfs, XattrMode};

use crate::bench::Rows;
use crate::crash::{STORE, open, sim_store};
use crate::support::{Calls, READ, ROOT, name};

const PIECE: usize = 16 << 10;
const PAGE: u64 = 4096;

/// One thing in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    ino: u64,
    kind: FileType,
    attributes: (u32, u32, u64, Timestamp),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Checksums of pieces of [`PIECE`] bytes, or of what a link says; `None` where reading fails.
    pieces: Vec<Option<u32>>,
}

type Tree = BTreeMap<String, Node>;
type Pairs = BTreeMap<(Vec<u8>, Vec<u8>), Vec<u8>>;

/// All that a store shows: trees by the name of their view, and dictionaries.
#[derive(Debug, Default)]
struct Shown {
    trees: BTreeMap<String, Tree>,
    pairs: Pairs,
}

fn pieces(fs: &VarveFs, ino: InodeId, size: u64) -> Vec<Option<u32>> {
    let starts = (0..size).step_by(PIECE);
    let Ok(opened) = fs.open(ino, READ) else { return starts.map(|_| None).collect() };
    let read = |start: u64| {
        let len = (size - start).min(PIECE as u64) as usize;
        let bytes = fs.read(ino, opened.handle, start, len).ok()?;
        // The kernel fills what is short with zeros.
        let mut whole = bytes.to_vec();
        whole.resize(len, 0);
        Some(crc32c::crc32c(&whole))
    };
    let pieces = starts.map(read).collect();
    fs.release(ino, opened.handle).unwrap();
    pieces
}

fn node(fs: &VarveFs, dir: InodeId, text: &str) -> FsResult<Node> {
    let attr = fs.find(dir, text)?;
    let pieces = match attr.kind {
        FileType::Regular => pieces(fs, attr.ino, attr.size),
        FileType::Symlink => vec![fs.readlink(attr.ino).ok().map(|target| crc32c::crc32c(&target))],
        _ => Vec::new(),
    };
    let names = fs.listxattr(attr.ino)?;
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let xattrs =
        names.filter_map(|name| Some((name.to_vec(), fs.getxattr(attr.ino, name).ok()?.to_vec())));
    let size = if attr.kind == FileType::Directory { 0 } else { attr.size };
    Ok(Node {
        ino: attr.ino.get(),
        kind: attr.kind,
        attributes: (attr.perm, attr.uid, size, attr.mtime),
        xattrs: xattrs.collect(),
        pieces,
    })
}

fn tree_of(fs: &VarveFs) -> Tree {
    let (mut tree, mut dirs) = (Tree::new(), vec![(ROOT, String::new())]);
    while let Some((dir, path)) = dirs.pop() {
        for text in fs.list(dir) {
            let path = format!("{path}/{text}");
            let Ok(found) = node(fs, dir, &text) else { continue };
            if found.kind == FileType::Directory {
                dirs.push((InodeId::new(found.ino), path.clone()));
            }
            tree.insert(path, found);
        }
    }
    tree
}

fn shown(fs: &VarveFs, views: &[ViewName]) -> Shown {
    let mut shown = Shown::default();
    shown.trees.insert("main".to_owned(), tree_of(fs));
    for view in views {
        if let Ok(opened) = fs.open_view(view) {
            let kind = if view.kind == ViewKind::Snapshot { "snapshot" } else { "transaction" };
            shown.trees.insert(format!("{kind} {}", view.name), tree_of(&opened));
        }
    }
    let dictionaries = fs.dictionaries();
    for dictionary in dictionaries.list().unwrap() {
        let page = dictionaries.scan(&dictionary, KeyRange::all(), Direction::Forward, 1 << 24);
        for (key, value) in page.map(|page| page.pairs).unwrap_or_default() {
            shown.pairs.insert((dictionary.clone(), key.to_vec()), value.to_vec());
        }
    }
    shown
}

struct Sample {
    env: Arc<SimEnv>,
    views: Vec<ViewName>,
    shown: Shown,
}

fn fill(rng: &mut Rng, fs: &VarveFs, dir: InodeId, text: &str) {
    let ino = fs.mk(dir, text);
    let len = match rng.below(100) {
        0..=59 => rng.below(500),
        60..=84 => 600 + rng.below(4000),
        85..=97 => 10_000 + rng.below(50_000),
        _ => 66_000 + rng.below(100_000),
    };
    let bytes: Vec<u8> = (0..len).map(|_| 1 + rng.below(255) as u8).collect();
    fs.put_at(ino, 0, &bytes);
    if rng.chance(10) {
        let value = rng.bytes(20);
        fs.setxattr(ino, b"user.note", &value, XattrMode::Set).unwrap();
    }
}

fn put_pairs(rng: &mut Rng, fs: &VarveFs, round: u64, pairs: u64) {
    for dictionary in [b"one", b"two"] {
        if round == 0 {
            fs.dictionaries().create(dictionary).unwrap();
        }
        let put = |n: u64| {
            let key = format!("key {round} {n}").into_bytes();
            (key.into(), Some(rng.bytes(50).into()))
        };
        fs.dictionaries().change(dictionary, (0..pairs).map(put).collect()).unwrap();
    }
}

/// Writes the log's rows to tables.
fn flush(env: &Arc<SimEnv>, fs: VarveFs) -> VarveFs {
    fs.sync().unwrap();
    fs.close().unwrap();
    drop(fs);
    let rows = Rows::open(env);
    rows.db.flush().unwrap();
    rows.close();
    open(env)
}

/// See the module's comment.
fn sample(seed: u64, files: u64, is_closed: bool) -> Sample {
    let (env, mut rng) = (sim_store(seed, &FormatOptions::default()), Rng::new(seed));
    let mut fs = open(&env);
    let dirs: Vec<InodeId> =
        (0..files.div_ceil(50) + 2).map(|dir| fs.mk_dir(ROOT, &format!("d{dir}"))).collect();
    fs.set_limits(dirs[0], TreeLimits { bytes: Some(1 << 30), inodes: Some(100_000) }).unwrap();
    for file in 0..files * 3 / 4 {
        fill(&mut rng, &fs, dirs[(file % dirs.len() as u64) as usize], &format!("f{file}"));
    }
    put_pairs(&mut rng, &fs, 0, files / 20 + 3);
    for link in 0..files / 50 + 2 {
        let ino = fs.find(dirs[1], "f1").unwrap().ino;
        fs.link(ino, dirs[2], name(&format!("link{link}"))).unwrap();
        fs.symlink(Caller::ROOT, dirs[1], name(&format!("symlink{link}")), b"../d0/f0").unwrap();
    }
    fs = flush(&env, fs);
    fs.create_snapshot("first").unwrap();
    fs.clone_tree(ROOT, name("d1"), ROOT, name("clone")).unwrap();
    fs.clone_tree(ROOT, name("d0"), ROOT, name("written")).unwrap();
    let written = fs.find(ROOT, "written").unwrap().ino;
    for file in 0..files / 4 {
        fill(&mut rng, &fs, dirs[(file % dirs.len() as u64) as usize], &format!("g{file}"));
        if file % 8 == 0 {
            fill(&mut rng, &fs, written, &format!("own{file}"));
        }
    }
    fs = flush(&env, fs);
    fs.create_snapshot("second").unwrap();
    for dir in &dirs {
        for text in fs.list(*dir).iter().filter(|text| text.starts_with('f')).step_by(9) {
            let ino = fs.find(*dir, text).unwrap().ino;
            let bytes = rng.bytes(300);
            fs.put_at(ino, rng.below(200), &bytes);
        }
    }
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    let own = view.mk_dir(ROOT, "in-transaction");
    (0..8).for_each(|file| fill(&mut rng, &view, own, &format!("t{file}")));
    view.sync().unwrap();
    drop(view);
    fs = flush(&env, fs);
    for file in 0..files / 20 + 2 {
        fill(&mut rng, &fs, dirs[(file % dirs.len() as u64) as usize], &format!("h{file}"));
    }
    put_pairs(&mut rng, &fs, 1, files / 20 + 3);
    fs.sync().unwrap();
    let views: Vec<ViewName> = ["first", "second"]
        .map(|name| ViewName { kind: ViewKind::Snapshot, name: name.to_owned() })
        .into_iter()
        .chain([txn])
        .collect();
    // What looking at a clone or a view makes, and what a mount makes of what was left, is there before.
    drop(shown(&fs, &views));
    fs.sync().unwrap();
    if is_closed {
        fs.close().unwrap();
    }
    drop(fs);
    let env = if is_closed { env } else { env.process_kill() };
    let fs = open(&env.copy().power_cut_keep_all());
    let shown = shown(&fs, &views);
    fs.close().unwrap();
    Sample { env, views, shown }
}

/// What kind of file a path is.
fn kind_of(path: &Path) -> String {
    let text = path.strip_prefix(STORE).unwrap().to_string_lossy().into_owned();
    let base = path.file_name().unwrap().to_string_lossy().into_owned();
    match text.split('/').next().unwrap_or_default() {
        "engine" => match path.extension() {
            Some(extension) if extension == "copy" => "MANIFEST.copy".to_owned(),
            Some(extension) => extension.to_string_lossy().into_owned(),
            None => base.split('-').next().unwrap_or_default().to_owned(),
        },
        "objects" => "large file".to_owned(),
        "kept" if base.ends_with("mark") => "mark of what is kept".to_owned(),
        "kept" | "views" => format!("{} of large files", text.split('/').next().unwrap()),
        _ => base,
    }
}

const FAULTS: [&str; 5] = ["bit", "zeroed page", "cut", "removed", "replaced"];

/// Does one fault to a file; false if it changes nothing.
fn damage(rng: &mut Rng, env: &Arc<SimEnv>, path: &Path, fault: &str) -> bool {
    let len = env.read_raw(path).unwrap().len() as u64;
    damage_in(rng, env, path, fault, 0..len)
}

/// The same; a bit, or a page, lies in a `part` of the file.
fn damage_in(
    rng: &mut Rng,
    env: &Arc<SimEnv>,
    path: &Path,
    fault: &str,
    part: std::ops::Range<u64>,
) -> bool {
    let bytes = env.read_raw(path).unwrap();
    let len = bytes.len() as u64;
    match fault {
        "removed" => env.remove_raw(path).unwrap(),
        _ if len == 0 => return false,
        "bit" => {
            let at = part.start + rng.below(part.end - part.start);
            env.damage(path, at, 1 << rng.below(8)).unwrap();
        }
        "zeroed page" => {
            let pages = part.start / PAGE..part.end.div_ceil(PAGE);
            let at = (pages.start + rng.below(pages.end - pages.start)) * PAGE;
            let zeros = vec![0; (len - at).min(PAGE) as usize];
            env.write_raw(path, at, &zeros).unwrap();
        }
        "cut" => env.truncate_raw(path, rng.below(len)).unwrap(),
        _ => {
            let mut others = env.files_raw();
            others.retain(|other| other != path && kind_of(other) == kind_of(path));
            let other = match others.is_empty() {
                true => rng.bytes(len as usize),
                false => env.read_raw(rng.pick::<PathBuf>(&others)).unwrap(),
            };
            env.truncate_raw(path, 0).unwrap();
            env.write_raw(path, 0, &other).unwrap();
        }
    }
    env.read_raw(path).map_or(true, |now| now != bytes)
}

/// The parts of a file in which a bit or a page may be damaged, by name: those of a table are its rows, and what stands behind them.
fn parts_of(
    env: &Arc<SimEnv>,
    path: &Path,
    fault: &str,
) -> Vec<(&'static str, std::ops::Range<u64>)> {
    let len = env.read_raw(path).unwrap().len() as u64;
    let is_table = path.extension().is_some_and(|extension| extension == "table");
    if is_table
        && ["bit", "zeroed page"].contains(&fault)
        && let Ok(Inspection::Table(table)) = inspect(&**env, path, false)
        && let Some(rows) = table.sections.iter().map(|section| section.offset).min()
        && (1..len).contains(&rows)
    {
        return vec![(", rows", 0..rows), (", index and the like", rows..len)];
    }
    vec![("", 0..len)]
}

/// A store that a repair has mended which could not save all rows, so that there is a list of what is lost.
fn with_lost_rows(sample: &Sample) -> Sample {
    let mut rng = Rng::new(7);
    loop {
        let env = sample.env.copy().power_cut_keep_all();
        let mut tables = env.files_raw();
        tables.retain(|path| path.extension().is_some_and(|extension| extension == "table"));
        let path = rng.pick(&tables).clone();
        damage(&mut rng, &env, &path, "bit");
        repaired(&env).unwrap();
        if env.read_raw(&Path::new(STORE).join("LOST")).is_ok() {
            let fs = open(&env);
            let shown = shown(&fs, &sample.views);
            fs.close().unwrap();
            return Sample { env, views: sample.views.clone(), shown };
        }
    }
}

/// What a fault has cost.
#[derive(Clone, Debug, Default)]
struct Cost {
    /// Names that are gone.
    names: u64,
    /// Files whose bytes are nowhere under any name.
    files: u64,
    /// Pieces that cannot be read.
    pieces: u64,
    /// Names whose bytes, attributes or links are others than before, or that are new.
    wrong: u64,
    snapshots: u64,
    transactions: u64,
    pairs: u64,
    /// What is gone or wrong and was not named.
    unnamed: Vec<String>,
}

/// What a repair has said.
struct Said {
    engine: EngineRepair,
    repair: RepairReport,
}

impl Said {
    /// Whether the repair said that this path may have lost something. Of what is lost with parts of logs or of the manifest, it says
    /// how much, but not of what.
    fn names(&self, path: &str, ino: u64) -> bool {
        let in_general = !self.engine.lost_records.is_empty() || self.engine.is_merged;
        let findings = || {
            self.repair
                .mended
                .iter()
                .map(|mended| &mended.finding)
                .chain(&self.repair.left.findings)
        };
        let is_above =
            |above: &str| path == above || above == "/" || path.starts_with(&format!("{above}/"));
        in_general
            || self.repair.doubts.iter().any(|doubt| doubt.ino == ino || is_above(&doubt.path))
            || findings().any(|finding| match finding {
                Finding::LostChunk { path, .. } | Finding::LostBytes { path, .. } => is_above(path),
                _ => false,
            })
    }
}

fn repaired(env: &Arc<SimEnv>) -> Result<Said, String> {
    let (dyn_env, dir, options): (Arc<dyn Env>, _, _) =
        (env.clone(), Path::new(STORE), CheckOptions::default());
    Superblock::restore(&**env, dir).map_err(|error| error.to_string())?;
    let engine =
        repair_engine(&dyn_env, dir, &options).map_err(|error| format!("engine: {error}"))?;
    let repair =
        repair_store(dyn_env, dir, &options, &mut |_| ()).map_err(|error| error.to_string())?;
    Ok(Said { engine, repair })
}

fn compare(sample: &Sample, after: &Shown, said: &Said, is_silent: bool) -> Cost {
    let mut cost = Cost::default();
    let everywhere: BTreeSet<_> = after
        .trees
        .values()
        .flat_map(|tree| tree.values())
        .map(|node| node.pieces.clone())
        .collect();
    for (view, before) in &sample.shown.trees {
        let Some(tree) = after.trees.get(view) else {
            match view.starts_with("snapshot") {
                true => cost.snapshots += 1,
                false => cost.transactions += 1,
            }
            continue;
        };
        for (path, was) in before {
            let mut unnamed = |what: String| {
                // Of what an open transaction has lost the keys are named.
                let by_keys = view.starts_with("transaction") && !said.engine.lost.is_empty();
                if !is_silent && !by_keys && !said.names(path, was.ino) {
                    cost.unnamed.push(format!("{view}: {path}: {what}"));
                }
            };
            let Some(is) = tree.get(path) else {
                unnamed("gone".to_owned());
                cost.names += 1;
                cost.files +=
                    u64::from(was.kind == FileType::Regular && !everywhere.contains(&was.pieces));
                continue;
            };
            let unread =
                is.pieces.iter().zip(&was.pieces).filter(|(is, was)| is.is_none() && was.is_some());
            cost.pieces += unread.count() as u64;
            let mut pieces = is.pieces.iter().zip(&was.pieces);
            let other = pieces.any(|(is, was)| is.is_some() && is != was)
                || is.pieces.len() != was.pieces.len();
            if other
                || (is.kind, is.attributes, &is.xattrs) != (was.kind, was.attributes, &was.xattrs)
            {
                unnamed(format!("was {was:?}, is {is:?}"));
                cost.wrong += 1;
            }
        }
        let is_new = |path: &&String| !before.contains_key(*path) && !path.contains("/lost+found");
        cost.wrong += tree.keys().filter(is_new).count() as u64;
    }
    for (key, value) in &sample.shown.pairs {
        cost.pairs += u64::from(after.pairs.get(key) != Some(value));
    }
    cost
}

/// Whether nothing is wrong but kept blocks of a snapshot that are damaged: that is said until the snapshot is deleted.
fn is_usable(report: &Report) -> bool {
    let is_damaged = |finding: &&Finding| matches!(finding, Finding::DamagedOverlay { .. });
    report.errors as usize == report.findings.iter().filter(is_damaged).count()
}

/// Repairs after one fault and says what it has cost, or why the store cannot be used.
fn cost_of(sample: &Sample, env: &Arc<SimEnv>, is_silent: bool) -> Result<Cost, String> {
    let said = repaired(env)?;
    if !is_usable(&said.repair.left) {
        return Err(format!(
            "left: {:?}",
            said.repair.left.findings.iter().take(3).collect::<Vec<_>>()
        ));
    }
    let again = repaired(env)?;
    if !again.engine.did_nothing() || !again.repair.did_nothing() {
        return Err(format!("again: {:?}, {:?}", again.engine, again.repair.mended));
    }
    let fs = VarveFs::open(env.clone(), Path::new(STORE), MountOptions::default());
    let fs = fs.map_err(|error| format!("mount: {error}"))?;
    let after = shown(&fs, &sample.views);
    fs.close().map_err(|error| format!("close: {error}"))?;
    drop(fs);
    let report = check_store(env.clone(), Path::new(STORE), &CheckOptions::default(), &mut |_| ());
    match report {
        Ok(report) if is_usable(&report) => Ok(compare(sample, &after, &said, is_silent)),
        Ok(report) => Err(format!("after the mount: {:?}", report.findings)),
        Err(error) => Err(format!("after the mount: {error}")),
    }
}

/// The costs by kind of file and fault.
#[derive(Default)]
struct Table {
    rows: BTreeMap<(String, &'static str), Vec<Cost>>,
    failed: Vec<String>,
}

impl Table {
    /// Does each kind of fault to each kind of file of `sample`, `each` times.
    fn measure(&mut self, sample: &Sample, seed: u64, state: &str, each: usize) {
        self.measure_kinds(sample, seed, state, each, &|_| true);
    }

    fn measure_kinds(
        &mut self,
        sample: &Sample,
        seed: u64,
        state: &str,
        each: usize,
        is_wanted: &dyn Fn(&str) -> bool,
    ) {
        let mut rng = Rng::new(seed);
        let mut by_kind: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        let mut files = sample.env.files_raw();
        files.retain(|path| path.starts_with(STORE));
        for path in files {
            by_kind.entry(kind_of(&path)).or_default().push(path);
        }
        by_kind.retain(|kind, _| is_wanted(kind));
        for (kind, paths) in by_kind {
            let rounds =
                FAULTS.iter().flat_map(|fault| (0..each).map(move |round| (*fault, round)));
            for (fault, round) in rounds {
                let path = rng.pick(&paths);
                for (part, bytes) in parts_of(&sample.env, path, fault) {
                    let env = sample.env.copy().power_cut_keep_all();
                    if !damage_in(&mut rng, &env, path, fault, bytes) {
                        continue;
                    }
                    let what =
                        format!("{state} {fault} {}, seed {seed}, round {round}", path.display());
                    // Bytes of large files have no checksums, and where a log ends cannot be told from a crash.
                    let is_silent =
                        kind.contains("large file") || (kind == "wal" && fault == "cut");
                    match cost_of(sample, &env, is_silent) {
                        Ok(cost) => {
                            if !cost.unnamed.is_empty() {
                                let some: Vec<_> = cost.unnamed.iter().take(3).collect();
                                self.failed.push(format!(
                                    "{what}: {} not named: {some:?}",
                                    cost.unnamed.len()
                                ));
                            }
                            self.rows
                                .entry((format!("{kind}{part} ({state})"), fault))
                                .or_default()
                                .push(cost);
                        }
                        Err(why) => self.failed.push(format!("{what}: {why}")),
                    }
                }
            }
        }
    }

    fn text(&self) -> String {
        let mut text = "| file | fault | tried | lost nothing | names | files | 16 KiB unreadable | wrong, named | snapshots | transactions | pairs |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n".to_owned();
        for ((kind, fault), costs) in &self.rows {
            let most = |of: fn(&Cost) -> u64| costs.iter().map(of).max().unwrap_or_default();
            let all: [fn(&Cost) -> u64; 7] = [
                |c| c.names,
                |c| c.files,
                |c| c.pieces,
                |c| c.wrong,
                |c| c.snapshots,
                |c| c.transactions,
                |c| c.pairs,
            ];
            let free = costs.iter().filter(|cost| all.iter().all(|of| of(cost) == 0)).count();
            write!(text, "| {kind} | {fault} | {} | {free} |", costs.len()).unwrap();
            all.iter().for_each(|of| write!(text, " {} |", most(*of)).unwrap());
            text.push('\n');
        }
        text
    }

    fn json(&self) -> String {
        let rows = self.rows.iter().map(|((kind, fault), costs)| {
            let costs: Vec<_> = costs
                .iter()
                .map(|c| {
                    serde_json::json!({ "names": c.names, "files": c.files, "unreadable_pieces": c.pieces, "wrong": c.wrong,
                        "snapshots": c.snapshots, "transactions": c.transactions, "pairs": c.pairs })
                })
                .collect();
            serde_json::json!({ "file": kind, "fault": fault, "costs": costs })
        });
        serde_json::json!({ "rows": rows.collect::<Vec<_>>(), "failed": self.failed }).to_string()
    }
}

impl Cost {
    fn all(&self) -> [u64; 7] {
        let Cost { names, files, pieces, wrong, snapshots, transactions, pairs, .. } = self;
        [*names, *files, *pieces, *wrong, *snapshots, *transactions, *pairs]
    }
}

/// What a repaired store has lost.
fn lost_after(sample: &Sample, env: &Arc<SimEnv>, said: &Said) -> Cost {
    assert!(is_usable(&said.repair.left), "{:?}", said.repair.left.findings);
    let fs = open(env);
    let after = shown(&fs, &sample.views);
    fs.close().unwrap();
    compare(sample, &after, said, true)
}

/// A power cut at any sync of a repair, or between two, leaves a store that the next repair mends as well as this one would have.
#[test]
fn a_repair_that_is_cut_short_anywhere_is_finished_by_the_next() {
    let sample = sample(2, 30, false);
    let mut rng = Rng::new(2);
    let (mut points, mut images) = (0, 0);
    for (kind, fault) in [
        ("table", "bit"),
        ("table", "removed"),
        ("wal", "zeroed page"),
        ("MANIFEST", "removed"),
        ("both manifests", "removed"),
        ("CURRENT", "replaced"),
        ("large file", "cut"),
    ] {
        let damaged = sample.env.copy().power_cut_keep_all();
        let mut paths = damaged.files_raw();
        paths.retain(|path| {
            let own = kind_of(path);
            own == kind || kind == "both manifests" && own.starts_with("MANIFEST")
        });
        // The longest says the most.
        paths.sort_by_key(|path| std::cmp::Reverse(damaged.read_raw(path).unwrap().len()));
        paths.truncate(if kind == "both manifests" { 2 } else { 1 });
        assert!(paths.iter().all(|path| damage(&mut rng, &damaged, path, fault)), "{kind}");
        let whole = damaged.power_cut_keep_all();
        let [ops, syncs] = [whole.op_count(), whole.sync_count()];
        let said = repaired(&whole).unwrap();
        let [ops, syncs] = [whole.op_count() - ops, whole.sync_count() - syncs];
        let expected = lost_after(&sample, &whole, &said).all();
        let at_syncs = (1..=syncs).map(|sync| (true, sync));
        let between = (0..ops).step_by((ops as usize / 12).max(1)).map(|op| (false, op));
        for (is_sync, at) in at_syncs.chain(between) {
            let cut = damaged.power_cut_keep_all();
            match is_sync {
                true => cut.crash_at_sync(cut.sync_count() + at),
                false => cut.crash_after(cut.op_count() + at),
            }
            let cut_short = repaired(&cut);
            points += 1;
            for image in [cut.power_cut_keep_nothing(), cut.power_cut_keep_all(), cut.power_cut(at)]
            {
                let what = format!("{kind} {fault}, sync {is_sync} {at}");
                let said = repaired(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
                let found = lost_after(&sample, &image, &said).all();
                let is_as_good =
                    found.iter().zip(&expected).all(|(found, expected)| found <= expected);
                assert!(
                    is_as_good,
                    "{what}: {found:?} and not {expected:?}, {:?}",
                    cut_short.err()
                );
                images += 1;
            }
        }
    }
    println!("{points} points, {images} images");
    assert!(points > 100, "{points}");
}

/// A bounded part of the soak: each kind of file meets each kind of fault.
#[test]
fn no_single_fault_costs_what_is_not_named() {
    let mut table = Table::default();
    for is_closed in [true, false] {
        let state = if is_closed { "closed" } else { "killed" };
        table.measure(&sample(1, 60, is_closed), 1, state, 1);
    }
    table.measure_kinds(&with_lost_rows(&sample(1, 60, true)), 1, "repaired", 2, &|kind| {
        kind == "LOST"
    });
    println!("{}", table.text());
    assert!(table.failed.is_empty(), "{}", table.failed.join("\n"));
    assert!(table.rows.len() > 40, "{}", table.rows.len());
}

#[test]
#[ignore = "cargo xtask soak damage"]
fn soak() {
    let mut table = Table::default();
    let files =
        std::env::var("VARVE_SOAK_FILES").ok().and_then(|text| text.parse().ok()).unwrap_or(2000);
    let samples = [("closed", sample(1, files, true)), ("killed", sample(1, files, false))];
    let lost = with_lost_rows(&samples[0].1);
    println!(
        "{}",
        varve_testkit::soak(|seed| {
            samples.iter().for_each(|(state, sample)| table.measure(sample, seed, state, 1));
            table.measure_kinds(&lost, seed, "repaired", 1, &|kind| kind.starts_with("LOST"));
        })
    );
    println!("{}\n{}", table.text(), table.json());
    assert!(table.failed.is_empty(), "{}", table.failed.join("\n"));
}
