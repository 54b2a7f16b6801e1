//! `varve txn`: transactions over files.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;
use varve::views::{ViewRequest, ask};
use varve::{Result, transaction};

use crate::output;

/// What to do.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Begin a transaction, and print the directory in which to work
    Begin(BeginArguments),
    /// Make all that was changed in a transaction part of the file system at once
    Commit(IdArguments),
    /// Drop a transaction with all that was changed in it
    Abort(IdArguments),
    /// Tell the open transactions
    List(ListArguments),
    /// Tell the paths that a transaction has changed: A added, D removed, M changed, R renamed
    Diff(TellArguments),
    /// Tell where a transaction is, when it began and how many paths and pairs it has changed
    Status(TellArguments),
    /// Run a program in a transaction: committed if it succeeds, else aborted
    Run(RunArguments),
    /// Run a program where a view is seen at a directory
    #[command(hide = true)]
    Enter(EnterArguments),
}

#[derive(Args)]
struct BeginArguments {
    /// The directory to work in, on a mount
    dir: PathBuf,
}

#[derive(Args)]
struct IdArguments {
    /// A directory of the mount, or the store
    #[arg(value_name = "DIR|STORE")]
    path: PathBuf,
    /// The transaction: the last part of what `begin` printed
    id: String,
}

#[derive(Args)]
struct ListArguments {
    /// A directory of the mount, or the store
    #[arg(value_name = "DIR|STORE")]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct TellArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: IdArguments,
}

#[derive(Args)]
struct RunArguments {
    /// How often to run the program again if others have changed what it changed
    #[arg(long, value_name = "N", default_value_t = 0)]
    retry: u32,
    /// The directory to work in, on a mount: the program sees the transaction there, all others what was before
    dir: PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Args)]
struct EnterArguments {
    /// The view
    view: PathBuf,
    /// Where it is to be seen
    dir: PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.action {
        Action::Begin(BeginArguments { dir }) => {
            let begun = transaction::begin(dir)?;
            output::line(begun.path.display().to_string());
            Ok(())
        }
        Action::Commit(IdArguments { path, id }) => {
            ask(path, ViewRequest::Commit { id: id.clone() }).map(drop)
        }
        Action::Abort(IdArguments { path, id }) => {
            ask(path, ViewRequest::Abort { id: id.clone() }).map(drop)
        }
        Action::List(ListArguments { path, json }) => {
            output::places(&ask(path, ViewRequest::ListTransactions)?, "id", *json)
        }
        Action::Diff(TellArguments { json, which: IdArguments { path, id } }) => {
            output::changes(&ask(path, ViewRequest::Diff { id: id.clone() })?, *json)
        }
        Action::Status(TellArguments { json, which: IdArguments { path, id } }) => {
            status(&ask(path, ViewRequest::Status { id: id.clone() })?, *json)
        }
        Action::Enter(EnterArguments { view, dir, command }) => {
            Err(transaction::enter(view, dir, command))
        }
        Action::Run(RunArguments { retry, dir, command }) => {
            let status = transaction::run(dir, command, *retry)?;
            if status != 0 {
                std::process::exit(status);
            }
            Ok(())
        }
    }
}

fn status(told: &Value, json: bool) -> Result<()> {
    if json {
        return output::json(told);
    }
    let at_least = if told["complete"] == false { "at least " } else { "" };
    output::line(format!("transaction  {}", output::printable(&told["id"])));
    output::line(format!("path         {}", told["path"].as_str().unwrap_or("-")));
    output::line(format!("begun        {} s since 1970", told["begun"]));
    output::line(format!(
        "paths        {at_least}{} added, {} removed, {} changed, {} renamed",
        told["added"], told["removed"], told["changed"], told["renamed"]
    ));
    output::line(format!("pairs        {} changed in dictionaries", told["pairs"]));
    Ok(())
}
