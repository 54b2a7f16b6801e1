//! Checks a whole store, from its bytes to its files, and repairs it.
//!
//! 1. Refuse a store that another process has open. If its superblock cannot be read, read its copy.
//! 2. The engine reads every table and compares it with its checksums and the manifest.
//! 3. The file system reads every row and lists every large file.
//!
//! Damage is a problem in the report, not a failure of the check. [`repair`] takes the report, and repairs.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use varve_engine::repair::EngineRepair;
use varve_engine::{Store, StoreError};
use varve_env::{Env, ShadowEnv};
use varve_fs::fsck::{self, CheckError, repair::RepairReport};
pub use varve_fs::fsck::{CheckOptions, Progress};
use varve_fs::superblock::Superblock;
use varve_fs::{EngineKind, open_engine};
use varve_vfs::FsError;

use crate::machine::Machine;
use crate::{Result, store};

/// The least memory that a check works with, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// What the check of the engine's files found.
#[derive(Debug, Default, Serialize)]
pub struct EngineReport {
    /// Tables read.
    pub tables: u64,
    /// Blocks read.
    pub blocks: u64,
    /// Versions of rows read.
    pub versions: u64,
    /// What is wrong, with file and offset.
    pub errors: Vec<String>,
}

/// What a check found.
#[derive(Debug, Default, Serialize)]
pub struct CheckReport {
    /// What is wrong with the superblock or its copy, the other of which is sound.
    pub superblock_error: Option<String>,
    /// The engine's files.
    pub engine: EngineReport,
    /// The file system's rows and large files; `None` if they could not be read to the end.
    pub file_system: Option<fsck::Report>,
    /// Why not.
    pub file_system_error: Option<String>,
}

impl CheckReport {
    /// True if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.superblock_error.is_none()
            && self.engine.errors.is_empty()
            && self.file_system.as_ref().is_some_and(fsck::Report::is_clean)
    }

    /// True if a mount opens the store, if only to read what is readable.
    pub fn can_be_opened(&self) -> bool {
        self.superblock_error.is_none()
            && self.engine.errors.is_empty()
            && self.file_system.is_some()
    }

    /// True if there is nothing to repair, finish or give back.
    pub fn is_spotless(&self) -> bool {
        self.is_clean() && self.file_system.as_ref().is_some_and(fsck::Report::is_spotless)
    }

    /// Number of problems.
    pub fn problems(&self) -> u64 {
        let rows = self.file_system.as_ref().map_or(0, |report| report.errors);
        let whole = [&self.superblock_error, &self.file_system_error];
        self.engine.errors.len() as u64 + rows + whole.into_iter().flatten().count() as u64
    }
}

/// What a repair did.
#[derive(Debug, Serialize)]
pub struct Repaired {
    /// Why the superblock and its copy were written anew, if they were.
    pub superblock: Option<String>,
    /// The engine's files; `None` if they were sound.
    pub engine: Option<EngineRepair>,
    /// The rows and the large files.
    pub file_system: RepairReport,
    /// A check afterwards.
    pub left: CheckReport,
}

impl Repaired {
    /// True if nothing had to be done.
    pub fn did_nothing(&self) -> bool {
        self.superblock.is_none() && self.file_system.did_nothing() && self.engine.is_none()
    }
}

/// Repairs the store in `dir`, which must not be in use and of which a check said what is in `found`.
pub fn repair(
    dir: &Path,
    found: &CheckReport,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Repaired> {
    Superblock::read_or_copy(&*Machine::to_read(dir)?.env(), dir)?;
    store::require_free(dir)?;
    let (superblock, engine, file_system) =
        store::changing(dir, |env| repair_on(env, dir, found, options, progress))?;
    let left = check(dir, options, progress)?;
    Ok(Repaired { superblock, engine, file_system, left })
}

/// Repairs the superblock, the engine's files and the file system.
fn repair_on(
    env: Arc<dyn Env>,
    dir: &Path,
    found: &CheckReport,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Option<String>, Option<EngineRepair>, RepairReport)> {
    let superblock = Superblock::restore(env.as_ref(), dir)?.map(|error| error.to_string());
    let mut engine = None;
    if !found.engine.errors.is_empty() || found.file_system_error.is_some() {
        progress(Progress { phase: "tables and logs", done: 0, permille: None });
        let repaired = fsck::repair::repair_engine(&env, dir, options)?;
        engine = Some(repaired).filter(|repaired| !repaired.did_nothing());
    }
    let file_system = fsck::repair::repair_store(env, dir, options, progress)?;
    Ok((superblock, engine, file_system))
}

/// Checks the store in `dir`, which must not be in use. Repairs nothing.
pub fn check(
    dir: &Path,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<CheckReport> {
    let machine = Machine::to_read(dir)?;
    let (_, error) = Superblock::read_or_copy(&*machine.env(), dir)?;
    store::require_free(dir)?;
    let superblock_error = error.map(|error| error.to_string());
    let mut report = CheckReport { superblock_error, ..CheckReport::default() };
    let engine = match check_engine(machine.env(), dir, options, progress) {
        Err(StoreError::NoSpace { .. }) => {
            check_engine(ShadowEnv::new(machine.env()), dir, options, progress)
        }
        checked => checked,
    };
    match engine {
        Ok(engine) => report.engine = engine,
        // What cannot even be opened cannot be looked at any further.
        Err(error) => {
            report.engine.errors.push(damage(error)?);
            return Ok(report);
        }
    }
    let files = match fsck::check_store(machine.env(), dir, options, progress) {
        Err(
            CheckError::Store(StoreError::NoSpace { .. }) | CheckError::Files(FsError::NoSpace(_)),
        ) => fsck::check_store(ShadowEnv::new(machine.env()), dir, options, progress),
        checked => checked,
    };
    match files {
        Ok(found) => report.file_system = Some(found),
        Err(CheckError::Store(error)) => report.file_system_error = Some(damage(error)?),
        Err(CheckError::Files(FsError::Damaged(text))) => report.file_system_error = Some(text),
        Err(CheckError::Files(error)) => return Err(error.into()),
    }
    Ok(report)
}

fn check_engine(
    env: Arc<dyn Env>,
    dir: &Path,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> std::result::Result<EngineReport, StoreError> {
    if Superblock::read_or_copy(env.as_ref(), dir)?.0.engine != EngineKind::Varve {
        return Ok(EngineReport::default());
    }
    let db = open_engine(env, dir, options.memory_bytes / 4)?;
    let verified = db.verify(&mut |at| {
        let permille = (at.bytes_done * 1000).checked_div(at.bytes).unwrap_or(1000);
        let permille = Some(permille as u16);
        progress(Progress { phase: "tables", done: at.tables_done, permille });
    });
    let closed = db.close();
    let verified = verified?;
    closed?;
    Ok(EngineReport {
        tables: verified.tables,
        blocks: verified.blocks,
        versions: verified.versions,
        errors: verified.errors.iter().map(ToString::to_string).collect(),
    })
}

/// The text of an error that is damage of the store; any other is a failure of the check.
fn damage(error: StoreError) -> Result<String> {
    match error {
        StoreError::Damaged { .. } | StoreError::Invalid(_) => Ok(error.to_string()),
        StoreError::Io { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(error.to_string())
        }
        StoreError::Io { .. }
        | StoreError::NoSpace { .. }
        | StoreError::Poisoned { .. }
        | StoreError::Locked { .. }
        | StoreError::NewerFormat { .. }
        | StoreError::NotAStore { .. }
        | StoreError::Conflict { .. }
        | StoreError::GaveWay { .. }
        | StoreError::Blocked(_)
        | StoreError::Ended
        | StoreError::Closed => Err(error.into()),
    }
}
