//! The space of the simulated disk: what takes it, when, and when it is free again.
//!
//! 1. Before a change the disk checks that it has space for it.
//! 2. After each change of a node, [`Disk::recount`] compares what the node takes ([`taken_by`]) with what it took
//!    before. So a change costs the same however much is on the disk.
//! 3. A sync frees the space that late rules held back.
//!
//! Invariant: the used pages are the sum over all nodes. Each of [`RoomRules`] is what some disks do beyond that.

use std::collections::BTreeSet;
use std::io;

use varve_types::Timestamp;

use super::content::{Change, Content, PAGE_BYTES};
use super::disk::{Body, Disk, ENOSPC, FileBody, NameEdit, Node, NodeId, errno};
use crate::rng::Rng;

/// Names that one page of a directory holds.
const NAMES_PER_PAGE: u64 = 32;
/// Pages of a file that one page of its metadata describes; the inode describes the first.
const PAGES_PER_METADATA: u64 = 64;

/// What some disks do with their space and others do not. By default the disk does none of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomRules {
    /// The most files and directories there may be; 0 for any number.
    pub inodes_max: u64,
    /// Names of directories and the positions of file pages take space too: a page for 32 names, and one for 64
    /// pages.
    pub metadata: bool,
    /// The disk accepts a write without space for it. The sync that finds no space fails with this number, and what
    /// it cannot write is lost, also to readers. 0 if the write itself takes its space. Reserved space is taken at
    /// once.
    pub delayed_errno: i32,
    /// An overwritten page that is on the disk keeps its space until the next sync of the file, and the new page
    /// takes other space. Only the first write to reserved space goes to that space.
    pub copies_on_write: bool,
    /// Removed or cut pages keep their space until the removal is durable.
    pub frees_late: bool,
    /// Bytes that [`crate::Env::space`] reports as free and that nobody can take.
    pub unusable_bytes: u64,
}

impl RoomRules {
    fn metadata_pages(&self, of: u64, per_page: u64) -> u64 {
        if self.metadata { of / per_page } else { 0 }
    }

    fn keeps_replaced(&self) -> bool {
        self.copies_on_write || self.frees_late
    }
}

/// Pages of one file whose room is not as it looks.
#[derive(Clone, Debug, Default)]
pub(super) struct FileRoom {
    /// On the disk, and written over or cut since: their room is not given back yet.
    replaced: BTreeSet<u64>,
    /// Reserved, and not written yet.
    unwritten: BTreeSet<u64>,
    /// Written, and without room yet.
    delayed: BTreeSet<u64>,
}

/// Pages that `node` takes.
fn taken_by(node: &Node, rules: &RoomRules) -> u64 {
    let is_visible = node.links > 0 || node.handles > 0;
    match &node.body {
        Body::Dir(dir) if is_visible => {
            u64::from(rules.metadata) + rules.metadata_pages(dir.names_most, NAMES_PER_PAGE)
        }
        Body::File(file) if is_visible => {
            let data = file.current.page_count() - file.room.delayed.len() as u64;
            let data = data + file.room.replaced.len() as u64;
            data + rules.metadata_pages(data, PAGES_PER_METADATA)
        }
        Body::File(file) if rules.frees_late && node.disk_refs > 0 => {
            let data = file.durable.page_count();
            data + rules.metadata_pages(data, PAGES_PER_METADATA)
        }
        _ => 0,
    }
}

impl Disk {
    /// Notes what a node takes now.
    pub(super) fn recount(&mut self, id: NodeId) {
        let rules = self.rules;
        let Some(node) = self.nodes.get(&id) else { return };
        let (taken, before) = (taken_by(node, &rules), node.taken_pages);
        if taken != before {
            self.used_pages = self.used_pages + taken - before;
            if let Some(node) = self.node_mut(id) {
                node.taken_pages = taken;
            }
        }
    }

    /// The same of all.
    pub(super) fn recount_all(&mut self) {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        ids.into_iter().for_each(|id| self.recount(id));
    }

    /// Has files of others take all room but `left` pages.
    pub(super) fn fill(&mut self, left: u64) {
        let room = self.capacity_pages.saturating_sub(self.used_pages);
        self.others_pages = room.saturating_sub(left);
    }

    /// Pages that may still be taken.
    pub(super) fn free_pages(&self) -> u64 {
        self.capacity_pages.saturating_sub(self.used_pages + self.others_pages)
    }

    /// Fails if there is no room for one more file or directory, which takes `pages`.
    pub(super) fn check_inode(&self, pages: u64) -> io::Result<()> {
        let is_there = |node: &Node| node.links > 0 || node.handles > 0 || self.rules.frees_late;
        let most = self.rules.inodes_max;
        let used = || self.nodes.values().filter(|node| is_there(node)).count() as u64;
        let no_inode = most > 0 && used() >= most;
        let no_page = self.rules.metadata && pages > self.free_pages();
        if no_inode || no_page { errno(ENOSPC) } else { Ok(()) }
    }

    /// Fails if the directory has no room for the names that an edit adds.
    pub(super) fn check_names(&self, change: &[NameEdit]) -> io::Result<()> {
        for edit in change.iter().filter(|edit| self.rules.metadata && edit.node.is_some()) {
            let dir = self.dir(edit.dir)?;
            let names = dir.current.len() as u64 + 1;
            let grows = names > dir.names_most && names.is_multiple_of(NAMES_PER_PAGE);
            if grows && !dir.current.contains_key(&edit.name) && self.free_pages() == 0 {
                return errno(ENOSPC);
            }
        }
        Ok(())
    }

    /// Changes a file's bytes, within the capacity.
    pub(super) fn change_file(
        &mut self,
        id: NodeId,
        change: Change,
        now: Timestamp,
    ) -> io::Result<()> {
        self.change_file_by(id, change, now).1
    }

    /// The same; says how many bytes were written, too, if all of them were not.
    pub(super) fn change_file_by(
        &mut self,
        id: NodeId,
        change: Change,
        now: Timestamp,
    ) -> (usize, io::Result<()>) {
        let (free, rules) = (self.free_pages(), self.rules);
        let file = match self.file_mut(id) {
            Ok(file) => file,
            Err(error) => return (0, Err(error)),
        };
        let (change, full) = fit(file, change, free, &rules);
        let written = match &change {
            Some(Change::Write { bytes, .. }) => bytes.len(),
            _ => 0,
        };
        if let Some(change) = change {
            file.note_room(&change, &rules);
            file.current.apply(&change);
            file.unsynced.push(change);
            if let Some(node) = self.node_mut(id) {
                node.modified = now;
            }
        }
        self.recount(id);
        (written, if full { errno(ENOSPC) } else { Ok(()) })
    }

    /// Makes a file's bytes durable.
    pub(super) fn sync_file(&mut self, id: NodeId, rng: &mut Rng) -> io::Result<()> {
        let (free, delayed_errno) = (self.free_pages(), self.rules.delayed_errno);
        let file = self.file_mut(id)?;
        if file.room.delayed.len() as u64 > free {
            self.lose_bytes(id, rng);
            return errno(delayed_errno);
        }
        for change in file.unsynced.drain(..) {
            file.durable.apply(&change);
        }
        file.room.replaced.clear();
        file.room.delayed.clear();
        self.recount(id);
        Ok(())
    }

    /// A sync of bytes that failed: each waiting change is on disk or lost for good. Without room for what was written, readers
    /// find what is on disk from then on.
    pub(super) fn lose_bytes(&mut self, id: NodeId, rng: &mut Rng) {
        self.failures += 1;
        let mut free = self.free_pages();
        let rules = self.rules;
        let Ok(file) = self.file_mut(id) else { return };
        let is_delayed = !file.room.delayed.is_empty();
        for change in file.unsynced.drain(..) {
            let needed = change.pages_needed(&file.durable);
            if rng.chance(50) && (!is_delayed || needed <= free) {
                file.durable.apply(&change);
                free = free.saturating_sub(needed);
            }
        }
        if is_delayed {
            file.current = file.durable.clone();
        }
        if is_delayed || rules.keeps_replaced() {
            file.room = FileRoom::default();
        }
        self.recount(id);
    }
}

impl FileBody {
    /// A file as the next boot finds it.
    pub(super) fn booted(&self, current: Content) -> FileBody {
        let mut unwritten = self.room.unwritten.clone();
        unwritten.retain(|page| current.has_page(*page));
        let room = FileRoom { unwritten, ..FileRoom::default() };
        FileBody { durable: current.clone(), current, unsynced: Vec::new(), room }
    }

    /// Returns whether a write to `page` takes room.
    fn takes_room(&self, page: u64, rules: &RoomRules) -> bool {
        !self.current.has_page(page) || rules.copies_on_write && self.is_copied(page)
    }

    /// Returns whether what is written over `page` stands elsewhere.
    fn is_copied(&self, page: u64) -> bool {
        self.durable.has_page(page)
            && !self.room.unwritten.contains(&page)
            && !self.room.replaced.contains(&page)
    }

    /// Notes what becomes of the room of the pages that `change` is about to touch.
    fn note_room(&mut self, change: &Change, rules: &RoomRules) {
        match change {
            Change::Write { offset, bytes } => {
                for page in Content::pages_of(*offset, bytes.len() as u64) {
                    if !self.current.has_page(page) {
                        if rules.delayed_errno != 0 {
                            self.room.delayed.insert(page);
                        }
                    } else if rules.copies_on_write && self.is_copied(page) {
                        self.room.replaced.insert(page);
                    }
                    self.room.unwritten.remove(&page);
                }
            }
            Change::Reserve { offset, len, .. } => {
                for page in Content::pages_of(*offset, *len) {
                    self.room.delayed.remove(&page);
                    if rules.copies_on_write && !self.current.has_page(page) {
                        self.room.unwritten.insert(page);
                    }
                }
            }
            Change::SetLen(len) => self.give_back(len.div_ceil(PAGE_BYTES), u64::MAX, rules),
            Change::Zero { offset, len, .. } => {
                let end = (offset + len) / PAGE_BYTES;
                self.give_back(offset.div_ceil(PAGE_BYTES), end, rules);
            }
        }
    }

    /// Notes that the pages from `first` up to `end` go.
    fn give_back(&mut self, first: u64, end: u64, rules: &RoomRules) {
        if first >= end {
            return;
        }
        if rules.keeps_replaced() {
            let going =
                self.current.pages_in(first, end).filter(|page| self.durable.has_page(*page));
            self.room.replaced.extend(going);
        }
        self.room.unwritten.retain(|page| !(first..end).contains(page));
        self.room.delayed.retain(|page| !(first..end).contains(page));
    }

    /// Pages that a range takes that is written or, if not, reserved.
    fn pages_wanted(&self, offset: u64, len: u64, is_written: bool, rules: &RoomRules) -> u64 {
        let wanted = |page: &u64| match is_written {
            true => self.takes_room(*page, rules),
            false => !self.current.has_page(*page) || self.room.delayed.contains(page),
        };
        Content::pages_of(offset, len).filter(wanted).count() as u64
    }
}

/// As much of `change` as `free` pages allow, and whether that is less than all of it. Writes are cut
/// to a prefix; a reservation is made whole or not at all.
fn fit(file: &FileBody, change: Change, free: u64, rules: &RoomRules) -> (Option<Change>, bool) {
    // For each page a part of one that describes it, and perhaps a new one.
    let with_metadata = |pages: u64| match pages {
        0 => 0,
        _ => pages + rules.metadata_pages(pages, PAGES_PER_METADATA) + u64::from(rules.metadata),
    };
    match change {
        Change::Write { offset, bytes } if rules.delayed_errno == 0 => {
            let len = bytes.len() as u64;
            if with_metadata(file.pages_wanted(offset, len, true, rules)) <= free {
                return (Some(Change::Write { offset, bytes }), false);
            }
            let (mut taken, mut kept) = (0, 0);
            for page in Content::pages_of(offset, len) {
                taken += u64::from(file.takes_room(page, rules));
                if with_metadata(taken) > free {
                    break;
                }
                kept = ((page + 1) * PAGE_BYTES).min(offset + len) - offset;
            }
            let bytes = bytes[..kept as usize].into();
            ((kept > 0).then_some(Change::Write { offset, bytes }), true)
        }
        Change::Reserve { offset, len, .. }
            if with_metadata(file.pages_wanted(offset, len, false, rules)) > free =>
        {
            (None, true)
        }
        other => (Some(other), false),
    }
}
