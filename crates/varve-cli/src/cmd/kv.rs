//! `varve kv`: dictionaries of pairs beside the files of a store.

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use varve::{Error, Result};
use varve_daemon::kv::Client;
use varve_daemon::kv::protocol::{End, Request, Response};
use varve_fs::dictionaries::PAIR_VALUE_BYTES_MAX;

use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
#[command(after_help = "PATH is a store, mounted or not, or a directory of a mount.")]
pub(crate) struct Arguments {
    /// Work in this transaction: its commit or abort decides about the pairs too [default: the transaction in whose directory PATH
    /// lies, if any]
    #[arg(long, value_name = "ID", global = true, value_parser = clap::value_parser!(u64).range(1..))]
    txn: Option<u64>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Create an empty dictionary
    Create(Dictionary),
    /// Drop a dictionary with all its pairs
    Drop(Dictionary),
    /// List the dictionaries
    List(List),
    /// Write the value of a key to the standard output
    Get(Key),
    /// Set the value of a key
    Put(Put),
    /// Remove a key and its value
    Delete(Key),
    /// List pairs in the order of their keys
    Scan(Scan),
}

#[derive(Args)]
struct Dictionary {
    /// A store, mounted or not, or a directory of a mount
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// The dictionary
    name: OsString,
}

#[derive(Args)]
struct List {
    /// A store, mounted or not, or a directory of a mount
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Key {
    #[command(flatten)]
    dictionary: Dictionary,
    /// The key
    key: OsString,
}

#[derive(Args)]
struct Put {
    #[command(flatten)]
    key: Key,
    /// The value [default: the standard input]
    value: Option<OsString>,
    /// Return only when the change would survive a power cut
    #[arg(long)]
    sync: bool,
}

#[derive(Args)]
struct Scan {
    #[command(flatten)]
    dictionary: Dictionary,
    /// The first key
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// The key before which to end
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Begin with the largest key
    #[arg(long)]
    reverse: bool,
    /// List at most so many pairs
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// Print a line of JSON for each pair; bytes that are not UTF-8 become a list of numbers
    #[arg(long)]
    json: bool,
}

fn bytes(text: &OsString) -> Vec<u8> {
    text.clone().into_vec()
}

/// Runs the action.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let path = match &arguments.action {
        Action::Create(dictionary) | Action::Drop(dictionary) => &dictionary.path,
        Action::List(list) => &list.path,
        Action::Get(key) | Action::Delete(key) => &key.dictionary.path,
        Action::Put(put) => &put.key.dictionary.path,
        Action::Scan(scan) => &scan.dictionary.path,
    };
    // Read before connecting: an open store is locked for others, and a daemon closes silent connections.
    let value = match &arguments.action {
        Action::Put(Put { value: Some(value), .. }) => Some(bytes(value)),
        Action::Put(_) => Some(standard_input()?),
        _ => None,
    };
    let mut client = Client::open(path, arguments.txn)?;
    let done = act(&mut client, &arguments.action, value);
    let closed = client.close();
    done.and(closed)
}

/// Runs `action`; a put sets `value`.
fn act(client: &mut Client, action: &Action, value: Option<Vec<u8>>) -> Result<()> {
    match action {
        Action::Create(dictionary) => {
            client.ask(Request::Create(bytes(&dictionary.name))).map(drop)
        }
        Action::Drop(dictionary) => client.ask(Request::Drop(bytes(&dictionary.name))).map(drop),
        Action::List(arguments) => list(client, arguments),
        Action::Get(key) => get(client, key),
        Action::Put(put) => {
            change(client, &put.key, value)?;
            if put.sync { client.ask(Request::Sync).map(drop) } else { Ok(()) }
        }
        Action::Delete(key) => change(client, key, None),
        Action::Scan(arguments) => scan(client, arguments),
    }
}

fn standard_input() -> Result<Vec<u8>> {
    if std::io::stdin().is_terminal() {
        return Err(Error::usage("the standard input is a terminal")
            .hint("give the value after the key, or pipe it in"));
    }
    let mut value = Vec::new();
    // One byte more than the limit, so that a longer value is refused.
    let bytes_max = PAIR_VALUE_BYTES_MAX as u64 + 1;
    let read = std::io::stdin().lock().take(bytes_max).read_to_end(&mut value);
    read.map_err(|error| Error::machine("read the standard input", error))?;
    Ok(value)
}

fn change(client: &mut Client, key: &Key, value: Option<Vec<u8>>) -> Result<()> {
    let name = bytes(&key.dictionary.name);
    client.ask(Request::Change { name, changes: vec![(bytes(&key.key), value)] }).map(drop)
}

fn list(client: &mut Client, arguments: &List) -> Result<()> {
    let Response::Names(names) = client.ask(Request::List)? else { return Err(strange()) };
    if arguments.json {
        return output::json(&names.iter().map(|name| shown(name)).collect::<Vec<_>>());
    }
    names.iter().for_each(output::line);
    Ok(())
}

fn get(client: &mut Client, key: &Key) -> Result<()> {
    let request = Request::Get { name: bytes(&key.dictionary.name), key: bytes(&key.key) };
    let Response::Value(value) = client.ask(request)? else { return Err(strange()) };
    let Some(value) = value else {
        return Err(Error::failed("the key has no value")
            .hint("`varve kv scan` lists the keys that have values"));
    };
    output::bytes(&value);
    Ok(())
}

fn scan(client: &mut Client, arguments: &Scan) -> Result<()> {
    let end = |key: &Option<OsString>, end: fn(Vec<u8>) -> End| key.as_ref().map(bytes).map(end);
    let mut start = end(&arguments.from, End::Included).unwrap_or(End::Open);
    let mut stop = end(&arguments.to, End::Excluded).unwrap_or(End::Open);
    let (reverse, mut left) = (arguments.reverse, arguments.limit);
    loop {
        let name = bytes(&arguments.dictionary.name);
        let request = Request::Scan { name, start: start.clone(), end: stop.clone(), reverse };
        let Response::Pairs(pairs, more) = client.ask(request)? else { return Err(strange()) };
        for (key, value) in &pairs {
            if left == 0 || !output::is_wanted() {
                return Ok(());
            }
            left -= 1;
            if arguments.json {
                output::line(json!({ "key": shown(key), "value": shown(value) }).to_string());
            } else {
                output::line([&key[..], b"\t", &value[..]].concat());
            }
        }
        let Some((last, _)) = pairs.into_iter().next_back().filter(|_| more) else { return Ok(()) };
        if reverse {
            stop = End::Excluded(last);
        } else {
            start = End::Excluded(last);
        }
    }
}

/// Bytes as a string where they are UTF-8, else as a list of numbers.
fn shown(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text))
}

fn strange() -> Error {
    Error::failed("the daemon's answer is of another kind than the request")
        .hint("the daemon may have another version: `varve upgrade` gives it this one")
}
