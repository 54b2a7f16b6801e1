//! `varve txn`: transactions over files.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;
use varve::{Result, transaction_options};
use varve_daemon::requests::{ViewRequest, ask};
use varve_daemon::{logging, transaction};
use varve_fs::{Isolation, OnConflict, TransactionOptions};
use varve_types::Timestamp;

use super::design::named;
use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Begin a transaction, and print the directory in which to work
    Begin(BeginArguments),
    /// Commit a transaction: all of its changes at once
    Commit(IdArguments),
    /// Abort a transaction: drop all of its changes
    Abort(IdArguments),
    /// List the open transactions
    List(ListArguments),
    /// List the paths that a transaction has changed: A added, D removed, M changed, R renamed
    Diff(TellArguments),
    /// Show the directory of a transaction, when it began, and how many paths and pairs it has changed
    Status(TellArguments),
    /// Run a program in a transaction, as root: committed if it succeeds, else aborted
    Run(RunArguments),
    /// Run a program that sees a view at a directory
    #[command(hide = true)]
    Enter(EnterArguments),
}

/// The options of a transaction
#[derive(Args)]
struct HowArguments {
    /// The isolation from others: `snapshot` sees the state at its beginning, and if two change the same the first commit wins;
    /// `serializable` locks what it reads and changes until it ends
    #[arg(long, value_name = "FROM", default_value = "snapshot", value_parser = named::<Isolation>)]
    isolation: Isolation,
    /// What a serializable transaction does when it meets the locks of others: `wait`, lose its locks and begin again (`restart`), or
    /// let the call `fail` (EBUSY)
    #[arg(long, value_name = "WHAT", default_value = "wait", value_parser = named::<OnConflict>)]
    on_conflict: OnConflict,
    /// How long one call waits for locks before it fails (EBUSY), 0 to 3600, also 2.5
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = transaction_options::lock_wait_ms)]
    lock_timeout: u64,
    /// The priority in a deadlock: the victim (EDEADLK) is the transaction with the smallest number, and of equal ones the youngest
    #[arg(long, value_name = "N", default_value_t = 0)]
    priority: u32,
}

impl HowArguments {
    fn options(&self) -> TransactionOptions {
        TransactionOptions {
            isolation: self.isolation,
            on_conflict: self.on_conflict,
            lock_wait_ms: self.lock_timeout,
            priority: self.priority,
            ..TransactionOptions::default()
        }
    }
}

#[derive(Args)]
struct BeginArguments {
    #[command(flatten)]
    how: HowArguments,
    /// Abort the transaction when no program has used it for so long, 1s at least: 90s, 10m, 2h, 7d [default: never]
    #[arg(long, value_name = "TIME", value_parser = transaction_options::idle_s)]
    idle_abort: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The directory to work in, on a mount
    dir: PathBuf,
}

#[derive(Args)]
struct IdArguments {
    /// A directory of the mount, or the store
    #[arg(value_name = "DIR|STORE")]
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// The transaction: what `begin` printed, or the last part of it
    id: String,
}

#[derive(Args)]
struct ListArguments {
    /// A directory of the mount, or the store
    #[arg(value_name = "DIR|STORE")]
    #[arg(value_parser = store_path())]
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
    #[command(flatten)]
    how: HowArguments,
    /// How often to run the program again after a conflict, after a deadlock, or if it failed because a call met the locks of others
    #[arg(long, value_name = "N", default_value_t = 0)]
    retry: u32,
    /// The directory to work in, on a mount: the program sees the transaction there, and all other programs do not. It begins in
    /// your working directory if that lies in DIR, else in DIR. Changes outside of DIR are no part of the transaction
    dir: PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Args)]
struct EnterArguments {
    /// The view
    view: PathBuf,
    /// The directory at which the program sees it
    dir: PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the action.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.action {
        Action::Begin(BeginArguments { how, idle_abort, json, dir }) => {
            let options = TransactionOptions { idle_abort_s: *idle_abort, ..how.options() };
            let begun = transaction::begin(dir, &options)?;
            if *json {
                return output::json(&begun);
            }
            output::line(begun.path.into_os_string().into_encoded_bytes());
            Ok(())
        }
        Action::Commit(IdArguments { path, id }) => {
            ask(path, ViewRequest::Commit { id: id.clone() }).map(drop)
        }
        Action::Abort(IdArguments { path, id }) => {
            ask(path, ViewRequest::Abort { id: id.clone() }).map(drop)
        }
        Action::List(ListArguments { path, json }) => {
            list(&ask(path, ViewRequest::ListTransactions)?, *json)
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
        Action::Run(RunArguments { how, retry, dir, command }) => {
            let status = transaction::run(dir, command, &how.options(), *retry)?;
            if status != 0 {
                std::process::exit(status);
            }
            Ok(())
        }
    }
}

fn list(told: &Value, json: bool) -> Result<()> {
    if json {
        return output::json(told);
    }
    for txn in told.as_array().into_iter().flatten() {
        let path = output::place(&txn["path"]);
        let locks = locks(txn).map_or_else(String::new, |locks| format!("  serializable, {locks}"));
        let id = output::printable(&txn["id"]);
        output::line([id.as_bytes(), b"  ", &path, locks.as_bytes()].concat());
    }
    Ok(())
}

/// The locks of a transaction in words, if it takes any.
fn locks(txn: &Value) -> Option<String> {
    let locks = txn["locks"].as_u64()?;
    if let Some(why) = txn["gave_way"].as_str() {
        return Some(format!("gave way: {why}"));
    }
    let waits_for = txn["waits_for"].as_array().into_iter().flatten();
    let waits_for: Vec<String> = waits_for.map(output::printable).collect();
    Some(match waits_for.is_empty() {
        true => format!("{locks} locks"),
        false => format!("{locks} locks, waits for {}", waits_for.join(", ")),
    })
}

fn status(told: &Value, json: bool) -> Result<()> {
    if json {
        return output::json(told);
    }
    let at_least = if told["complete"] == false { "at least " } else { "" };
    output::line(format!("transaction  {}", output::printable(&told["id"])));
    output::line([b"path         ", &output::place(&told["path"])[..]].concat());
    let begun = told["begun"].as_i64().and_then(|seconds| Timestamp::new(seconds, 0));
    let begun = begun.map_or_else(|| told["begun"].to_string(), logging::utc);
    output::line(format!("begun        {begun}"));
    output::line(format!("isolation    {}", output::printable(&told["isolation"])));
    if let Some(locks) = locks(told) {
        output::line(format!("locks        {locks}"));
    }
    if let Some(idle_s) = told["idle_s"].as_u64() {
        output::line(match told["in_use"] == true {
            true => "use          programs are in it".to_owned(),
            false => format!("use          none for {idle_s} s"),
        });
    }
    if let Some(seconds) = told["idle_abort_s"].as_u64() {
        output::line(format!("aborted      after {seconds} s without use"));
    }
    output::line(format!(
        "paths        {at_least}{} added, {} removed, {} changed, {} renamed",
        told["added"], told["removed"], told["changed"], told["renamed"]
    ));
    output::line(format!("pairs        {} changed in dictionaries", told["pairs"]));
    Ok(())
}
