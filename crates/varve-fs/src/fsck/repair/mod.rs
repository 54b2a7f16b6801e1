//! Mends what a check finds.
//!
//! 1. A first check finds which ids are in use, so that new ones are above them.
//! 2. Then the store is checked again, and each finding is mended as it comes: the rows it is about are read
//!    afresh, and one batch changes them. What other findings of the same pass have changed already is left
//!    alone.
//! 3. That is repeated until a pass mends nothing: what hid behind other damage shows in the next pass.
//! 4. Pending work is finished, as a mount does, and what is left is reported.
//!
//! Invariants: each batch leaves the store no worse, so that a repair that is cut short can be begun again;
//! bytes of users are never dropped: what no name leads to gets one in `/lost+found`, and rows that make no
//! sense go to a file in `aside/` that is durable before they are removed ([`aside`]). docs/repair.md says
//! what is done for each finding.
//!
//! Files: [`edit`] changes rows together, [`lost_found`] gives names, [`names`], [`inodes`], [`usage`], [`clones`]
//! and [`data`] mend what is found of each.

mod aside;
mod clones;
mod data;
mod edit;
mod engine;
mod inodes;
mod lost_found;
mod names;
mod usage;

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use varve_engine::Batch;
use varve_engine::StoreResult;
use varve_env::Env;
use varve_namespace::Changes;
use varve_schema::key::{ID_MARK, STORE_ID};
use varve_schema::{DATA, DICTIONARIES, DictionaryRow, REQUESTS, ROW_VERSION, put_varint};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::finding::At;
use super::volume::{AlsoSync, Volume};
use super::{CheckOptions, Doubt, Finding, Progress, Report, check_volume};
use crate::error::invalid;
use crate::fs::VarveFs;
use crate::lost::{LOST_NAME, Lost};
use crate::options::MountOptions;
use crate::rows::whole_batch;
use crate::{error, ids};
use aside::Aside;
pub use engine::{dropped_views, repair_engine};
use usage::Marks;

/// Repairs that are kept one by one.
pub const MENDED_MAX: usize = 10_000;
/// Each pass mends what the one before uncovered; a chain of consequences is a few passes long.
const PASSES_MAX: usize = 12;

/// One thing that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mended {
    /// What was found.
    pub finding: Finding,
    /// What was done about it.
    pub done: String,
}

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// What was done, in order; at most [`MENDED_MAX`].
    pub mended: Vec<Mended>,
    /// What was done beyond that.
    pub mended_omitted: u64,
    /// Where rows and files went that make no sense, if there were any.
    pub aside: Option<String>,
    /// What may be older than it was, or incomplete, as the engine's files lost rows.
    pub doubts: Vec<Doubt>,
    /// More of those.
    pub doubts_omitted: u64,
    /// A check afterwards.
    pub left: Report,
}

impl RepairReport {
    /// True if nothing had to be done.
    pub fn did_nothing(&self) -> bool {
        self.mended.is_empty()
    }
}

/// The state of a repair.
struct Repair<'a> {
    volume: &'a Volume,
    aside: Aside,
    report: RepairReport,
    /// The id for the next new inode; above all in use.
    next_id: u64,
    /// Ids below this are marked as handed out, durably.
    mark: u64,
    /// Things done in this pass.
    done: u64,
    /// The directory `/lost+found`, and its path.
    lost_found: Option<(InodeId, String)>,
    /// See [`CheckOptions::owner`].
    owner: (u32, u32),
    /// Slots of the directories that are marked, once they are asked for.
    marks: Option<Marks>,
}

/// Repairs the file system in the store `dir`, which nobody may have open.
pub fn repair_store(
    env: Arc<dyn Env>,
    dir: &Path,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> StoreResult<RepairReport> {
    let also = AlsoSync::default();
    let volume = Volume::open(Arc::clone(&env), dir, options.engine_bytes(), Arc::clone(&also))?;
    let aside = Aside::new(Arc::clone(&env), dir, also);
    let mended = mend(&volume, aside, options, progress);
    let synced = volume.store.sync().and_then(|()| volume.store.empty_logs());
    let closed = volume.store.close();
    drop(volume);
    let mut report = mended.map_err(invalid)?;
    synced.and(closed)?;
    if report.left.is_clean() && !report.left.is_spotless() {
        // A mount finishes pending work; it can be opened again only now that its rows make sense.
        let mount =
            MountOptions { memory_budget_bytes: options.engine_bytes(), ..MountOptions::default() };
        VarveFs::open(Arc::clone(&env), dir, mount)?.close()?;
        report.left = super::check_store(env, dir, options, progress)?;
    }
    Ok(report)
}

fn mend(
    volume: &Volume,
    aside: Aside,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> FsResult<RepairReport> {
    let mut left = check_volume(volume, options, progress, &mut |_, _| Ok(()))?;
    // Before anything is mended that shows what was lost.
    let (doubts, doubts_omitted) = (std::mem::take(&mut left.doubts), left.doubts_omitted);
    let mark = volume.store.get(volume.meta, &ID_MARK.to_bytes()).map_err(error::store)?;
    let mark = mark.and_then(|bytes| ids::decode_mark(&bytes).ok());
    let mark = mark.unwrap_or(0).min(ids::ID_MAX);
    let mut repair = Repair {
        volume,
        aside,
        report: RepairReport::default(),
        next_id: mark.max(left.largest_inode + 1).max(InodeId::FIRST_FREE.get()),
        mark,
        done: 0,
        lost_found: None,
        owner: options.owner,
        marks: None,
    };
    for _ in 0..PASSES_MAX {
        // With the superblock of another store, every name would seem to be in the wrong place.
        if left.is_spotless() || left.findings.contains(&Finding::OtherStore) {
            break;
        }
        repair.done = 0;
        left =
            check_volume(volume, options, progress, &mut |finding, at| repair.mend(finding, at))?;
        if repair.done == 0 {
            break;
        }
        left = check_volume(volume, options, progress, &mut |_, _| Ok(()))?;
    }
    let mark = repair.mark.max(repair.next_id);
    let mut report = repair.report;
    report.aside = repair.aside.path();
    (report.doubts, report.doubts_omitted) = (doubts, doubts_omitted);
    (left.doubts, left.doubts_omitted) = (Vec::new(), 0);
    if left.is_clean() {
        losses_are_marked(volume, mark)?;
    }
    report.left = left;
    Ok(report)
}

/// Notes that rows stand where chunks are lost, when they are durable.
fn losses_are_marked(volume: &Volume, mark: u64) -> FsResult<()> {
    volume.store.sync().map_err(error::store)?;
    let epochs = || volume.sources.iter().flatten().chain(&volume.transactions).copied();
    let newest = epochs().max().map_or(0, |epoch| epoch.get() + 1);
    let mut epochs = epochs();
    let marked = Lost::note_marked(volume.env.as_ref(), &volume.dir, mark.max(newest), &mut epochs);
    marked.map_err(|error| error::object("write", &volume.dir.join(LOST_NAME), error))
}

impl Repair<'_> {
    /// Does what is to be done about one finding, and notes it.
    fn mend(&mut self, finding: &Finding, at: &At) -> FsResult<()> {
        let Some(done) = self.mend_one(finding, at)? else { return Ok(()) };
        self.done += 1;
        if self.report.mended.len() < MENDED_MAX {
            self.report.mended.push(Mended { finding: finding.clone(), done });
        } else {
            self.report.mended_omitted += 1;
        }
        Ok(())
    }

    /// What was done; `None` if there is nothing to do, or not yet.
    fn mend_one(&mut self, finding: &Finding, at: &At) -> FsResult<Option<String>> {
        match (finding, at) {
            (
                Finding::UnreadableRow { keyspace, .. } | Finding::UnknownRow { keyspace, .. },
                At::Row(key),
            ) => self.set_row_aside(keyspace, key),
            (
                Finding::UnreadableDictionary { .. } | Finding::SharedDictionary { .. },
                At::Row(key),
            ) => self.set_row_aside(DICTIONARIES, key),
            (Finding::PairsWithoutDictionary { number }, _) => self.name_dictionary(*number),
            (Finding::NoStoreId, _) => self.write_store_id(),
            (Finding::NoRoot, _) => self.restore_directory(InodeId::ROOT),
            (Finding::EntriesWithoutDirectory { dir, .. }, _) => {
                self.restore_directory(InodeId::new(*dir))
            }
            (Finding::DanglingEntry { ino, .. }, At::Name(spot)) => self.dangling(*spot, *ino),
            (Finding::MisplacedEntry { .. }, At::Name(spot)) => self.put_name_right(*spot, false),
            (Finding::DuplicateName { .. } | Finding::BadName { .. }, At::Name(spot)) => {
                self.put_name_right(*spot, true)
            }
            (Finding::SecondName { ino, .. }, At::Name(spot)) => self.second_name(*spot, *ino),
            (Finding::WrongParent { dir, .. }, At::Name(spot)) => self.adopt_name(*dir, *spot),
            (Finding::WrongParent { .. }, _) => self.root_is_its_own_parent(),
            (Finding::WrongType { ino, .. }, At::Name(spot)) => self.wrong_type(*spot, *ino),
            (Finding::WrongEntryCount { dir, .. } | Finding::WrongSubdirCount { dir, .. }, _) => {
                self.count_entries(*dir)
            }
            (Finding::DirectoryWithoutName { dir: ino, .. }, _)
            | (Finding::InodeWithoutName { ino }, _) => self.name_in_lost_found(*ino),
            (Finding::DirectoryLoop { dir }, _) => self.cut_loop(*dir),
            (Finding::InodeTwice { ino }, At::Names(first, second)) => {
                self.make_row(*ino, *first)?;
                self.second_inode(*ino, *second)
            }
            (Finding::InodeTwice { ino }, At::Name(spot)) => self.second_inode(*ino, *spot),
            (Finding::NamesWithoutRow { ino, .. }, At::Name(spot)) => self.make_row(*ino, *spot),
            (Finding::WrongInode { ino, found }, _) => self.wrong_inode(*ino, *found),
            (Finding::ImpossibleId { .. }, At::Name(spot)) => self.new_identity(*spot),
            (Finding::IdBeyondMark { largest, .. }, _) => self.raise_mark(*largest),
            (Finding::WrongLinkCount { ino, recorded, counted }, at) => {
                self.set_links(*ino, at, *recorded, *counted)
            }
            (
                Finding::PendingWithoutInode { ino } | Finding::PendingContradicted { ino, .. },
                _,
            ) => self.drop_pending(*ino),
            _ => self.mend_clone(finding, at),
        }
    }

    /// Moves a row to the file of rows that make no sense.
    fn set_row_aside(&mut self, keyspace: &str, key: &[u8]) -> FsResult<Option<String>> {
        let space = match keyspace {
            DATA => self.volume.data,
            DICTIONARIES => self.volume.dictionaries,
            REQUESTS => self.volume.requests.unwrap_or(self.volume.meta),
            _ => self.volume.meta,
        };
        let Some(value) = self.volume.store.get(space, key).map_err(error::store)? else {
            return Ok(None);
        };
        self.aside.row(keyspace, key, &value)?;
        let mut batch = Batch::new();
        batch.delete(space, key);
        batch.depends_on_external();
        self.write(batch)?;
        Ok(Some("set aside".to_owned()))
    }

    /// Gives the pairs with this number a name.
    fn name_dictionary(&mut self, number: u32) -> FsResult<Option<String>> {
        let (store, names) = (&self.volume.store, self.volume.dictionaries);
        for attempt in 0..u32::MAX {
            let name = match attempt {
                0 => format!("recovered-{number}"),
                more => format!("recovered-{number}-{more}"),
            };
            if store.get(names, name.as_bytes()).map_err(error::store)?.is_none() {
                let mut batch = Batch::new();
                batch.put(names, name.as_bytes(), DictionaryRow::found(number).encode());
                self.write(batch)?;
                return Ok(Some(format!("named {name}")));
            }
        }
        Ok(None)
    }

    fn commit(&self, changes: Changes) -> FsResult<()> {
        self.write(whole_batch(changes, (self.volume.meta, self.volume.data)))
    }

    fn write(&self, batch: Batch) -> FsResult<()> {
        self.volume.store.write(batch).map_err(error::store)
    }

    /// An id for a new inode.
    fn new_id(&mut self) -> FsResult<InodeId> {
        let ino = InodeId::new(self.next_id);
        self.next_id += 1;
        if ino.get() >= self.mark {
            self.write_mark(ino.get())?;
        }
        Ok(ino)
    }

    fn raise_mark(&mut self, largest: u64) -> FsResult<Option<String>> {
        if largest < self.mark {
            return Ok(None);
        }
        self.next_id = self.next_id.max(largest + 1);
        self.write_mark(largest)?;
        Ok(Some(format!("marked the ids up to {} as handed out", self.mark)))
    }

    fn write_mark(&mut self, above: u64) -> FsResult<()> {
        self.mark = above + ids::RESERVE;
        let mut value = vec![ROW_VERSION];
        put_varint(&mut value, self.mark);
        let mut changes = Changes::new();
        changes.put_meta(ID_MARK, value);
        self.commit(changes)
    }

    fn write_store_id(&mut self) -> FsResult<Option<String>> {
        let Some(id) = self.volume.store_id else { return Ok(None) };
        let mut changes = Changes::new();
        changes.put_meta(STORE_ID, id.encode());
        self.commit(changes)?;
        Ok(Some("they say now that they belong to the superblock's".to_owned()))
    }

    fn drop_pending(&mut self, ino: u64) -> FsResult<Option<String>> {
        let mut changes = Changes::new();
        changes.delete_pending(InodeId::new(ino));
        self.commit(changes)?;
        Ok(Some("the pending work is dropped".to_owned()))
    }
}
