//! `varve snapshot`: named states of a store, which do not change.

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use varve::{Error, Result};
use varve_daemon::requests::{ViewRequest, ask, roll_back_watched};
use varve_daemon::transfer::{self, SendRequest};
use varve_fs::ROLL_BACK_PHASES;
use varve_fs::fsck::Progress as At;

use crate::cmd::store_path;
use crate::output::{self, Progress};

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Create a snapshot of a store, at once
    Create(CreateArguments),
    /// List the snapshots of a store
    List(ListArguments),
    /// Delete a snapshot
    Delete(NameArguments),
    /// List the paths that changed since a snapshot, or between two: A added, D removed, M changed, R renamed
    Diff(DiffArguments),
    /// Roll the whole tree back to a snapshot, at once; all snapshots stay
    Rollback(RollbackArguments),
    /// Write a snapshot to the standard output, or its changes since another one
    Send(SendArguments),
    /// Receive a snapshot from the standard input, into a store that has the one before it or into a new store
    Receive(ReceiveArguments),
}

#[derive(Args)]
struct CreateArguments {
    #[command(flatten)]
    which: NameArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct NameArguments {
    /// A directory of a mount, or a store
    #[arg(value_name = "DIR|STORE")]
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// The snapshot's name
    name: String,
}

#[derive(Args)]
struct ListArguments {
    /// A directory of a mount, or a store
    #[arg(value_name = "DIR|STORE")]
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct DiffArguments {
    /// A directory of a mount, or a store
    #[arg(value_name = "DIR|STORE")]
    #[arg(value_parser = store_path())]
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
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// The snapshot's name
    name: String,
    /// Only list what would change: A is added again, D is removed, M changes, R is renamed
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long, requires = "dry_run")]
    json: bool,
}

#[derive(Args)]
struct SendArguments {
    /// A directory of a mount, or a store
    #[arg(value_name = "DIR|STORE")]
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// The snapshot's name
    #[arg(required_unless_present = "resume")]
    name: Option<String>,
    /// Send only the changes since this snapshot, which the receiver has
    #[arg(long, value_name = "NAME")]
    since: Option<String>,
    /// Continue an interrupted receipt, which printed this token
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["name", "since"])]
    resume: Option<String>,
}

#[derive(Args)]
struct ReceiveArguments {
    /// A directory of a mount, a store, or the directory for a new store
    #[arg(value_name = "DIR|STORE")]
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// Only print the token by which `send --resume` continues
    #[arg(long)]
    token: bool,
    /// Only drop what an interrupted receipt has received
    #[arg(long, conflicts_with = "token")]
    discard: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Sends to the standard output, which must be no terminal.
fn send(arguments: &SendArguments) -> Result<()> {
    let SendArguments { path, name, since, resume } = arguments;
    let request = match (resume, name) {
        (Some(token), _) => SendRequest::of_token(token)?,
        (None, name) => {
            let name = name.clone().unwrap_or_default();
            SendRequest { name, since: since.clone(), resumed: None }
        }
    };
    if std::io::stdout().is_terminal() {
        return Err(Error::usage("a terminal cannot show a stream".to_owned())
            .hint("write it to a file with `> FILE`, or pipe it to `varve snapshot receive`"));
    }
    let mut out = Counted { inner: std::io::stdout().lock(), bytes: 0, progress: Progress::new() };
    transfer::send(path, &request, &mut out).map(drop)
}

fn receive(arguments: &ReceiveArguments) -> Result<()> {
    let ReceiveArguments { path, token, discard, json } = arguments;
    if *discard {
        ask(path, ViewRequest::DiscardReceipt)?;
        return if *json { output::json(&json!({ "token": null })) } else { Ok(()) };
    }
    if *token {
        let told = ask(path, ViewRequest::Receipt)?;
        return match told["token"].as_str() {
            Some(_) if *json => output::json(&told),
            Some(token) => {
                output::line(token);
                Ok(())
            }
            None => Err(Error::failed(format!("nothing was interrupted at {}", path.display()))
                .hint("send the snapshot from its beginning")),
        };
    }
    if std::io::stdin().is_terminal() {
        return Err(Error::usage("the standard input is a terminal".to_owned())
            .hint("pipe the output of `varve snapshot send` in, or name a file with `< FILE`"));
    }
    let mut input = Counted { inner: std::io::stdin().lock(), bytes: 0, progress: Progress::new() };
    let received = transfer::receive(path, &mut input)?;
    if *json {
        return output::json(&received);
    }
    let name = received["name"].as_str().unwrap_or_default();
    output::line(format!(
        "received {name}: {} rows, {} large files",
        received["rows"], received["files"]
    ));
    Ok(())
}

/// Counts the bytes that pass, and shows the count.
struct Counted<T> {
    inner: T,
    bytes: u64,
    progress: Progress,
}

impl<T> Counted<T> {
    fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.progress.show(&format!("{} MiB", self.bytes >> 20));
    }
}

impl<T: Write> Write for Counted<T> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.count(count);
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Counted<T> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count(count);
        Ok(count)
    }
}

/// What a rollback does with the item of a phase.
fn verb(at: &At) -> &'static str {
    let [rows, files, _changes] = ROLL_BACK_PHASES;
    match at.phase {
        phase if phase == rows => "comparing",
        phase if phase == files => "copying",
        _ => "committing",
    }
}

/// Runs the action.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.action {
        Action::Create(CreateArguments { which: NameArguments { path, name }, json }) => {
            let created = ask(path, ViewRequest::CreateSnapshot { name: name.clone() })?;
            if *json {
                return output::json(&created);
            }
            if let Some(note) = created["note"].as_str() {
                output::note(note);
            }
            output::line(match &created["path"] {
                Value::Null => name.clone().into_bytes(),
                path => output::place(path),
            });
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
            if *dry_run {
                let request =
                    ViewRequest::Rollback { name: name.clone(), dry_run: true, watched: false };
                return output::changes(&ask(path, request)?, *json);
            }
            output::watched(verb, |progress| roll_back_watched(path, name, progress))
        }
        Action::Send(arguments) => send(arguments),
        Action::Receive(arguments) => receive(arguments),
    }
}
