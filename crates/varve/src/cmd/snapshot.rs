//! `varve snapshot`: named states of a store, which do not change.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use varve::Result;
use varve::views::{ViewRequest, ask};

use crate::output;

/// What to do.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Give the present state of a store a name, at once
    Create(NameArguments),
    /// Tell the snapshots of a store
    List(ListArguments),
    /// Let go of a snapshot
    Delete(NameArguments),
    /// Tell the paths that changed since a snapshot, or between two: A added, D removed, M changed, R renamed
    Diff(DiffArguments),
    /// Make the whole tree what it was in a snapshot, at once; all snapshots stay
    Rollback(RollbackArguments),
}

#[derive(Args)]
struct NameArguments {
    /// A directory of a mount, or a store
    #[arg(value_name = "DIR|STORE")]
    path: PathBuf,
    /// The snapshot's name
    name: String,
}

#[derive(Args)]
struct ListArguments {
    /// A directory of a mount, or a store
    #[arg(value_name = "DIR|STORE")]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct DiffArguments {
    /// A directory of a mount, or a store
    #[arg(value_name = "DIR|STORE")]
    path: PathBuf,
    /// The older snapshot
    from: String,
    /// The later snapshot; without it, the present state
    to: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RollbackArguments {
    /// A directory of a mount, or a store
    #[arg(value_name = "DIR|STORE")]
    path: PathBuf,
    /// The snapshot's name
    name: String,
    /// Only tell what would happen: A comes back, D goes, M changes, R is renamed
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long, requires = "dry_run")]
    json: bool,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.action {
        Action::Create(NameArguments { path, name }) => {
            let created = ask(path, ViewRequest::CreateSnapshot { name: name.clone() })?;
            output::line(created["path"].as_str().unwrap_or(name));
            Ok(())
        }
        Action::List(ListArguments { path, json }) => {
            output::places(&ask(path, ViewRequest::ListSnapshots)?, "name", *json)
        }
        Action::Delete(NameArguments { path, name }) => {
            ask(path, ViewRequest::DeleteSnapshot { name: name.clone() }).map(drop)
        }
        Action::Diff(DiffArguments { path, from, to, json }) => {
            let request = ViewRequest::DiffSnapshots { from: from.clone(), to: to.clone() };
            output::changes(&ask(path, request)?, *json)
        }
        Action::Rollback(RollbackArguments { path, name, dry_run, json }) => {
            let done = ask(path, ViewRequest::Rollback { name: name.clone(), dry_run: *dry_run })?;
            if *dry_run { output::changes(&done, *json) } else { Ok(()) }
        }
    }
}
