//! `varve fsck`: check a store, and repair it if asked to.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use varve::check::{self, CheckOptions, CheckReport, MEMORY_BYTES_MIN, Repaired};
use varve::{Error, Result, exit_status, size};
use varve_daemon::holder::require_offline;
use varve_engine::repair::EngineRepair;
use varve_fs::fsck::repair::dropped_views;

use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
#[command(
    after_help = "Exit status: 0 clean, 1 failed, 2 wrong command line, 3 everything found was repaired,\n\
    4 problems are left. Without --repair no file and no name changes; a new log is begun,\n\
    as each time a store is opened."
)]
pub(crate) struct Arguments {
    /// The store; must not be mounted
    #[arg(value_parser = store_path())]
    store: PathBuf,
    /// Repair all problems that are found; asks first
    #[arg(long)]
    repair: bool,
    /// Do not ask
    #[arg(long, requires = "repair")]
    yes: bool,
    /// Memory to use, 1M at least, for any number of files
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory)]
    memory: u64,
    /// The directory for sorted data that does not fit into memory [default: the store's directory]
    #[arg(long, value_name = "DIR")]
    spill_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The most findings that are shown one by one; JSON has all of them.
const SHOWN_FINDINGS: usize = 100;

fn memory(text: &str) -> std::result::Result<u64, String> {
    match size::parse(text) {
        Ok(bytes) if bytes >= MEMORY_BYTES_MIN => Ok(bytes),
        Ok(_) => Err(format!("at least {} is needed", size::show(MEMORY_BYTES_MIN))),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks, and repairs.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let store = &arguments.store;
    let options = CheckOptions {
        memory_bytes: usize::try_from(arguments.memory).unwrap_or(usize::MAX),
        spill_dir: arguments.spill_dir.clone(),
        // What is no store is told by the check.
        owner: std::fs::metadata(store).map_or((0, 0), |store| (store.uid(), store.gid())),
    };
    // Before it takes its time; and JSON shows nothing of what is asked about.
    if arguments.repair && !arguments.yes && (arguments.json || !output::can_ask()) {
        return Err(Error::usage(
            "--repair asks before it changes anything, which takes a terminal, and no --json",
        )
        .hint("add --yes"));
    }
    require_offline(store)?;
    let found =
        output::watched(|_| "checking", |progress| check::check(store, &options, progress))?;
    if !arguments.repair {
        print(arguments.json, &found, show)?;
        return outcome(store, &found);
    }
    if found.is_spotless() {
        return print(arguments.json, &Outcome { found, repair: None }, |outcome| {
            show(&outcome.found);
        });
    }
    if !arguments.json {
        show(&found);
    }
    if !arguments.yes && !output::ask(&format!("repair {}?", store.display())) {
        return Err(Error::failed("nothing was changed")
            .hint("run it again when you want the store repaired")
            .with_status(exit_status::PROBLEMS_FOUND));
    }
    require_offline(store)?;
    let repaired = output::watched(
        |_| "repairing",
        |progress| check::repair(store, &found, &options, progress),
    )?;
    let outcome = Outcome { found, repair: Some(repaired) };
    print(arguments.json, &outcome, |outcome| {
        outcome.repair.as_ref().inspect(|repaired| show_repair(repaired));
    })?;
    ended(store, &outcome)
}

/// What `--repair` prints as JSON.
#[derive(Serialize)]
struct Outcome {
    found: CheckReport,
    repair: Option<Repaired>,
}

fn print<T: Serialize>(json: bool, value: &T, show: impl FnOnce(&T)) -> Result<()> {
    if json {
        return output::json(value);
    }
    show(value);
    Ok(())
}

fn outcome(store: &Path, report: &CheckReport) -> Result<()> {
    if report.is_clean() {
        return Ok(());
    }
    let problems = report.problems();
    Err(Error::failed(format!("{} has {problems} problems", store.display()))
        .hint(format!("keep a copy of the store, then `varve fsck --repair` (docs/repair.md says what it does){}", or_read(report)))
        .with_status(exit_status::PROBLEMS_FOUND))
}

/// Another way to deal with problems, for a hint.
fn or_read(report: &CheckReport) -> &'static str {
    match report.can_be_opened() {
        true => "; or mount it with -o ro, and copy what is readable",
        false => "",
    }
}

fn ended(store: &Path, outcome: &Outcome) -> Result<()> {
    let Some(repaired) = &outcome.repair else { return Ok(()) };
    if !repaired.left.is_clean() {
        let problems = repaired.left.problems();
        return Err(Error::failed(format!("{} still has {problems} problems", store.display()))
            .hint(format!("`varve fsck` names them{}", or_read(&repaired.left)))
            .with_status(exit_status::PROBLEMS_FOUND));
    }
    if repaired.did_nothing() {
        return Ok(());
    }
    Err(Error::failed(format!("{} was repaired", store.display()))
        .hint("look at lost+found in its root directory, and mount it")
        .with_status(exit_status::REPAIRED))
}

fn show(report: &CheckReport) {
    if let Some(error) = &report.superblock_error {
        output::line(format!("superblock: error: {error}"));
    }
    let engine = &report.engine;
    output::line(format!(
        "engine: {} tables, {} blocks, {} rows",
        engine.tables, engine.blocks, engine.versions
    ));
    for error in &engine.errors {
        output::line(format!("  error: {error}"));
    }
    if let Some(error) = &report.file_system_error {
        output::line(format!("file system: error: {error}"));
    }
    let Some(files) = &report.file_system else { return };
    output::line(format!(
        "file system: {} directories, {} files, {} names, {} large files",
        files.directories, files.files, files.names, files.objects
    ));
    for finding in files.findings.iter().take(SHOWN_FINDINGS) {
        output::line(format!("  {}: {finding}", severity(finding.severity())));
    }
    let omitted =
        files.findings.len().saturating_sub(SHOWN_FINDINGS) as u64 + files.findings_omitted;
    if omitted > 0 {
        output::line(format!("  and {omitted} more"));
    }
    match files.lost {
        _ if !report.is_clean() => {}
        0 => output::line("clean"),
        lost => output::line(format!("clean, but for bytes that are lost in {lost} places")),
    }
}

fn show_repair(repaired: &Repaired) {
    let files = &repaired.file_system;
    if let Some(why) = &repaired.superblock {
        output::line(format!("  repaired: the superblock and its copy are written anew: {why}"));
    }
    repaired.engine.as_ref().inspect(|engine| show_engine_repair(engine));
    for mended in files.mended.iter().take(SHOWN_FINDINGS) {
        output::line(format!("  repaired: {}: {}", mended.finding, mended.done));
    }
    let omitted = files.mended.len().saturating_sub(SHOWN_FINDINGS) as u64 + files.mended_omitted;
    if omitted > 0 {
        output::line(format!("  and {omitted} more"));
    }
    for doubt in files.doubts.iter().take(SHOWN_FINDINGS) {
        output::line(format!("  in doubt: {} (inode {}): {}", doubt.path, doubt.ino, doubt.what));
    }
    let omitted = files.doubts.len().saturating_sub(SHOWN_FINDINGS) as u64 + files.doubts_omitted;
    if omitted > 0 {
        output::line(format!("  and {omitted} more in doubt"));
    }
    if let Some(aside) = &files.aside {
        output::line(format!("what makes no sense is in {aside}"));
    }
    output::line("afterwards:");
    show(&repaired.left);
}

fn show_engine_repair(engine: &EngineRepair) {
    if let Some(why) = &engine.manifest_lost {
        let from = if engine.is_merged { "from what is left" } else { "and nothing of it is lost" };
        output::line(format!("  repaired: the list of tables is made anew {from}: {why}"));
    }
    for lost in engine.lost.iter().take(SHOWN_FINDINGS) {
        output::line(format!("  repaired: {lost}"));
    }
    if engine.versions_saved > 0 {
        output::line(format!("  {} rows were taken out of damaged tables", engine.versions_saved));
    }
    for lost in engine.lost_records.iter().take(SHOWN_FINDINGS) {
        output::line(format!("  repaired: {lost}"));
    }
    for view in dropped_views(engine) {
        output::line(format!("  dropped: transaction {}", view.name));
    }
    if engine.is_merged {
        output::line(
            "  snapshots and transactions of which only lost parts of the manifest knew are gone",
        );
    }
    for path in &engine.aside {
        output::line(format!("  kept: {}", path.display()));
    }
}

fn severity(severity: varve_fs::fsck::Severity) -> &'static str {
    match severity {
        varve_fs::fsck::Severity::Unfinished => "unfinished",
        varve_fs::fsck::Severity::Waste => "waste",
        varve_fs::fsck::Severity::Lost => "lost",
        varve_fs::fsck::Severity::Error => "error",
    }
}
