//! `varve fsck`: check a store; finds, does not repair.

use std::path::PathBuf;

use clap::Args;
use varve::check::{self, CheckReport, Progress};
use varve::{Error, Result, exit_status};

use crate::output;

/// What to check.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The store; must not be mounted
    store: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Findings that are shown one by one; JSON has all of them.
const SHOWN_FINDINGS: usize = 100;

/// Checks.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut line = output::Progress::new();
    let report = check::check(&arguments.store, &mut |at| line.show(&describe(at)))?;
    drop(line);
    if arguments.json {
        output::json(&report)?;
    } else {
        show(&report);
    }
    if report.is_clean() {
        return Ok(());
    }
    let problems = report.problems();
    Err(Error::failed(format!("{} has {problems} problems", arguments.store.display()))
        .hint("keep a copy of the store before anything else; what is readable can still be mounted with -o ro")
        .with_status(exit_status::PROBLEMS_FOUND))
}

fn describe(at: Progress) -> String {
    match at.total {
        Some(total) => format!("checking {}: {} of {total}", at.phase, at.done),
        None => format!("checking {}: {}", at.phase, at.done),
    }
}

fn show(report: &CheckReport) {
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
    if report.is_clean() {
        output::line("clean");
    }
}

fn severity(severity: varve_fs::fsck::Severity) -> &'static str {
    match severity {
        varve_fs::fsck::Severity::Unfinished => "unfinished",
        varve_fs::fsck::Severity::Waste => "waste",
        varve_fs::fsck::Severity::Error => "error",
    }
}
