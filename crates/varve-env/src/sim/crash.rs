//! What the disk may hold after the power is cut or the process is killed.
//!
//! The changes of each file since its durable state survive in one of three ways, decided for each file by itself:
//! nothing more survived; a prefix of the changes survived, the last of them torn; or any sectors of any writes
//! survived, whatever their order was. Lengths are decided apart from bytes: a length that survived without its bytes
//! shows zeros, and bytes beyond a length that did not survive are lost. Of the calls that cut, reserve or zero a
//! prefix survives, as a journal keeps them. On a disk with stale sectors, a length that survived without its bytes
//! shows old bytes of a removed file.
//!
//! Changes of names survive one at a time, in order, so that a rename within a directory survives as a whole or not
//! at all.
//!
//! A killed process leaves everything that its operations have done. Of a write under way it leaves a prefix, or any
//! part if the write copies bytes into a window, in any order.
//!
//! Invariant: every result keeps the promises of [`crate`].

use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::{Change, Content};
use super::disk::{Body, DirBody, Disk, FileBody, Names, Node, NodeId, ROOT};
use crate::rng::Rng;

/// Which unsynced changes survive.
#[derive(Debug)]
pub(super) enum Survival {
    /// None of them.
    Nothing,
    /// All of them.
    Everything,
    /// What the generator picks.
    Random(Rng),
    /// What the generator picks, on a disk with stale sectors.
    Stale(Rng),
}

/// Returns the disk as the next boot finds it.
pub(super) fn power_cut(disk: &Disk, survival: &mut Survival) -> Disk {
    let mut names = surviving_names(disk, survival);
    let links = count_links(&names);
    let mut nodes = BTreeMap::new();
    for (id, node) in &disk.nodes {
        let Some(links) = links.get(id).copied() else {
            continue;
        };
        let body = match &node.body {
            Body::Dir(_) => {
                let current = names.remove(id).unwrap_or_default();
                let names_most = current.len() as u64;
                Body::Dir(DirBody { durable: current.clone(), current, names_most })
            }
            Body::File(file) => Body::File(file.booted(surviving_bytes(disk, file, survival))),
        };
        let (modified, accessed) = (node.modified, node.accessed);
        let (disk_refs, handles, taken_pages) = (links, 0, 0);
        let node = Node { body, links, disk_refs, handles, taken_pages, modified, accessed };
        nodes.insert(*id, Arc::new(node));
    }
    let mut booted = Disk {
        nodes,
        unsynced_names: Vec::new(),
        used_pages: 0,
        next_node: disk.next_node,
        capacity_pages: disk.capacity_pages,
        others_pages: disk.others_pages,
        rules: disk.rules,
        freed: disk.freed.clone(),
        shares_room: disk.shares_room,
        failures: disk.failures,
    };
    booted.recount_all();
    lose_what_has_no_room(disk, &mut booted);
    booted
}

/// If writes take no space before their sync, the disk holds no more of them than fits.
fn lose_what_has_no_room(before: &Disk, booted: &mut Disk) {
    let ids: Vec<NodeId> = booted.nodes.keys().copied().collect();
    for id in ids.into_iter().filter(|_| before.rules.delayed_errno != 0) {
        if booted.used_pages + booted.others_pages <= booted.capacity_pages {
            return;
        }
        if let (Ok(file), Ok(left)) = (before.file(id), booted.file_mut(id)) {
            *left = file.booted(file.durable.clone());
        }
        booted.recount(id);
    }
}

/// Returns the disk as the next process finds it after this one was killed: everything as it was, without the files
/// that have no name.
pub(super) fn process_kill(disk: &Disk) -> Disk {
    let mut disk = disk.clone();
    let ids: Vec<NodeId> = disk.nodes.keys().copied().collect();
    for id in ids {
        if disk.nodes.get(&id).is_some_and(|node| node.handles > 0) {
            disk.release(id, |node| node.handles = 0);
        }
    }
    disk
}

/// A write under way.
#[derive(Clone, Debug)]
pub(super) struct UnderWay {
    pub(super) node: NodeId,
    pub(super) offset: u64,
    pub(super) bytes: Arc<[u8]>,
    /// Into a window.
    pub(super) by_copy: bool,
}

impl UnderWay {
    /// The most bytes that a copy has written or left out as one.
    const PIECE_BYTES_MAX: u64 = 64;

    /// A part that may be there when the process is dead, as the pieces of it that are.
    pub(super) fn part(&self, rng: &mut Rng) -> Vec<Change> {
        let len = self.bytes.len() as u64;
        let cut = rng.below(len + 1);
        let kept = match (self.by_copy, rng.below(3)) {
            (true, 0) => vec![(cut, len)],
            (true, 1) => {
                let (mut kept, mut at) = (Vec::new(), 0);
                while at < len {
                    let end = (at + 1 + rng.below(Self::PIECE_BYTES_MAX)).min(len);
                    kept.extend(rng.chance(50).then_some((at, end)));
                    at = end;
                }
                kept
            }
            _ => vec![(0, cut)],
        };
        let write = |(start, end)| Change::Write {
            offset: self.offset + start,
            bytes: self.bytes[start as usize..end as usize].into(),
        };
        kept.into_iter().filter(|(start, end)| start < end).map(write).collect()
    }
}

fn surviving_names(disk: &Disk, survival: &mut Survival) -> BTreeMap<NodeId, Names> {
    let mut names: BTreeMap<NodeId, Names> = BTreeMap::new();
    for (id, node) in &disk.nodes {
        if let Body::Dir(dir) = &node.body {
            names.insert(*id, dir.durable.clone());
        }
    }
    let percent = match survival {
        Survival::Random(rng) | Survival::Stale(rng) => [0, 20, 50, 80, 100][rng.below(5) as usize],
        Survival::Nothing => 0,
        Survival::Everything => 100,
    };
    for change in &disk.unsynced_names {
        let keep = match survival {
            Survival::Random(rng) | Survival::Stale(rng) => rng.chance(percent),
            Survival::Nothing => false,
            Survival::Everything => true,
        };
        for edit in change.iter().filter(|_| keep) {
            let Some(dir) = names.get_mut(&edit.dir) else {
                continue;
            };
            match edit.node {
                Some(node) => dir.insert(edit.name.clone(), node),
                None => dir.remove(&edit.name),
            };
        }
    }
    names
}

/// Returns how many names each node has that can be reached from the root.
fn count_links(names: &BTreeMap<NodeId, Names>) -> BTreeMap<NodeId, u32> {
    let mut links = BTreeMap::from([(ROOT, 1)]);
    let mut waiting = vec![ROOT];
    while let Some(dir) = waiting.pop() {
        for child in names.get(&dir).into_iter().flat_map(Names::values) {
            let count = links.entry(*child).or_insert(0);
            *count += 1;
            if *count == 1 {
                waiting.push(*child);
            }
        }
    }
    links
}

fn surviving_bytes(disk: &Disk, file: &FileBody, survival: &mut Survival) -> Content {
    let mut content = file.durable.clone();
    let changes = &file.unsynced;
    match survival {
        Survival::Nothing => {}
        Survival::Everything => changes.iter().for_each(|change| content.apply(change)),
        Survival::Random(_) | Survival::Stale(_) if changes.is_empty() => {}
        Survival::Random(rng) => keep_some(&mut content, changes, rng),
        Survival::Stale(rng) => {
            fill_stale(&mut content, changes, disk, rng);
            keep_some(&mut content, changes, rng);
        }
    }
    content.trim();
    content
}

/// Puts old bytes where writes lie beyond the length.
fn fill_stale(content: &mut Content, changes: &[Change], disk: &Disk, rng: &mut Rng) {
    const NOISE: u8 = 0xa5;
    let donor = disk.freed.get(rng.below(disk.freed.len().max(1) as u64) as usize);
    let stale = |at| donor.and_then(|donor| donor.byte(at)).unwrap_or(NOISE);
    for change in changes {
        if let Change::Write { offset, bytes } = change
            && offset + bytes.len() as u64 > content.len()
        {
            content.fill_beyond(*offset, bytes.len() as u64, stale);
        }
    }
}

fn keep_some(content: &mut Content, changes: &[Change], rng: &mut Rng) {
    match rng.below(4) {
        0 => {}
        1 | 2 => keep_prefix(content, changes, rng),
        _ => keep_any(content, changes, rng),
    }
}

/// A prefix of the changes; the last may be torn.
fn keep_prefix(content: &mut Content, changes: &[Change], rng: &mut Rng) {
    let whole = rng.below(changes.len() as u64 + 1) as usize;
    changes[..whole].iter().for_each(|change| content.apply(change));
    if let Some(Change::Write { offset, bytes }) = changes.get(whole) {
        let mut sectors = rng.below(bytes.len() as u64 / 512 + 2);
        content.apply_torn(*offset, bytes, rng.chance(50), || {
            sectors = sectors.saturating_sub(1);
            sectors > 0
        });
    }
}

/// Any sectors of any writes.
fn keep_any(content: &mut Content, changes: &[Change], rng: &mut Rng) {
    let percent = [10, 50, 90][rng.below(3) as usize];
    let metadata_kept = rng.below(changes.len() as u64 + 1) as usize;
    for (at, change) in changes.iter().enumerate() {
        match change {
            Change::Write { offset, bytes } => {
                let torn = rng.chance(60);
                let whole = rng.chance(percent);
                let keep_len = rng.chance(percent);
                let mut keep = || if torn { rng.chance(percent) } else { whole };
                content.apply_torn(*offset, bytes, keep_len, &mut keep);
            }
            other if at < metadata_kept => content.apply(other),
            _ => {}
        }
    }
}
