//! `varve inspect`: print what is in a file of a store, or what the store is made of.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use varve::{Error, Result, store};
use varve_engine::Inspection;
use varve_env::{Env, FileKind};
use varve_fs::superblock::{COPY_NAME, SUPERBLOCK_NAME, Superblock, engine_dir};

use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The store, to print its levels and tables; or a file of it: VARVE, VARVE.copy, LOCK, LOST, varve.log, varve.log.old, CURRENT,
    /// a manifest, a log, a table, a segment, a map of sub-levels, a large file or blocks of one
    #[arg(value_name = "STORE|FILE")]
    #[arg(value_parser = store_path())]
    file: PathBuf,
    /// Print every row too
    #[arg(long)]
    rows: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A large file, which holds a file's bytes and nothing else.
#[derive(Serialize)]
struct Object {
    file: &'static str,
    inode: u64,
    bytes: u64,
}

/// A file of text.
#[derive(Serialize)]
struct Text {
    file: &'static str,
    text: String,
}

/// Prints the store or the file.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let path = &arguments.file;
    if store::is_store(path) {
        return show_store(arguments);
    }
    let machine = store::machine_to_read(path)?;
    let stat = machine.stat(path).map_err(|error| {
        Error::io("read", path, &error)
            .hint("`varve status STORE` shows whether a directory is a store")
    })?;
    if stat.kind == FileKind::Dir {
        return Err(Error::failed(format!("{} is a directory, and no store", path.display()))
            .hint("name a store, or a file in one"));
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name {
        SUPERBLOCK_NAME => {
            let superblock = store::superblock(path.parent().unwrap_or(Path::new(".")))?;
            output::json(&superblock.public())
        }
        COPY_NAME => {
            let superblock = Superblock::read_file(&*machine, path)?;
            output::json(&superblock.as_ref().map(Superblock::public))
        }
        "LOCK" | "LOST" | "LOST.copy" | "varve.log" | "varve.log.old" => {
            show_text(path, arguments.json)
        }
        _ if name.ends_with(".blocks") => show_overlay(&*machine, arguments),
        _ if name.ends_with(".mark") || name.ends_with(".blocks-mark") => {
            show_mark(&*machine, arguments)
        }
        _ if storage_object(path).is_some() => show_storage_object(path, arguments.json),
        _ => match object_inode(path) {
            Some(inode) => {
                show_object(&Object { file: "object", inode, bytes: stat.len }, arguments.json)
            }
            None => show_engine_file(&*machine, arguments),
        },
    }
}

/// The name below the prefix of a store on shared storage, if `path` may be an object of one in a directory.
fn storage_object(path: &Path) -> Option<String> {
    let names: Vec<&str> = path.iter().rev().take(3).map_while(|name| name.to_str()).collect();
    match names[..] {
        [name, kind @ ("journal" | "root"), ..] => Some(format!("{kind}/{name}")),
        [number, epoch, "dir"] => Some(format!("dir/{epoch}/{number}")),
        _ => None,
    }
}

fn show_storage_object(path: &Path, json: bool) -> Result<()> {
    let name = storage_object(path).unwrap_or_default();
    let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, &error))?;
    let text = varve_storage::describe_object(&name, &bytes).map_err(|what| {
        Error::failed(format!("{} is damaged: {what}", path.display()))
            .hint("`varve fsck` with the address of the store says what it costs")
    })?;
    if json {
        output::json(&Text { file: "object", text })
    } else {
        output::line(text);
        Ok(())
    }
}

/// A mark: it says that a snapshot keeps a preimage of a large file.
#[derive(Serialize)]
struct Mark {
    file: &'static str,
    /// The bytes of the preimage when it was marked; `None` if the mark cannot be read.
    bytes: Option<u64>,
}

fn show_mark(machine: &dyn Env, arguments: &Arguments) -> Result<()> {
    let path = &arguments.file;
    let bytes =
        varve_fs::inspect_mark(machine, path).map_err(|error| Error::io("read", path, &error))?;
    if arguments.json {
        return output::json(&Mark { file: "mark", bytes });
    }
    output::line(match bytes {
        Some(bytes) => format!("mark: a file with {} is kept beside it", varve::size::show(bytes)),
        None => "mark: a file is kept beside it".to_owned(),
    });
    Ok(())
}

/// The longest text that is read: twice the size at which a log is renamed.
const TEXT_BYTES_MAX: u64 = 8 << 20;

fn show_text(path: &Path, json: bool) -> Result<()> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| Error::io("read", path, &error))?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        let message = format!("{} is longer than what Varve writes there", path.display());
        return Err(Error::failed(message).hint("look at it with head(1) or tail(1)"));
    }
    let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
    if json {
        return output::json(&Text { file: "text", text });
    }
    output::line(text);
    Ok(())
}

/// The inode whose bytes `path` holds, if it is `objects/K/J/I` of a store, or `kept/E/K/J/I` or `views/E/K/J/I` of a snapshot or
/// transaction E.
fn object_inode(path: &Path) -> Option<u64> {
    let path = path.canonicalize().ok()?;
    let mut parts = path.iter().rev();
    let inode = parts.next()?.to_str()?.parse().ok()?;
    let is_number = |part: Option<&std::ffi::OsStr>| part?.to_str()?.parse::<u64>().ok();
    is_number(parts.next())?;
    is_number(parts.next())?;
    let above = parts.next()?;
    if above == "objects" {
        return Some(inode);
    }
    is_number(Some(above))?;
    let above = parts.next()?;
    (above == "kept" || above == "views").then_some(inode)
}

fn show_object(object: &Object, json: bool) -> Result<()> {
    if json {
        return output::json(object);
    }
    output::line(format!(
        "large file: the bytes of inode {}, {}, as they are",
        object.inode,
        varve::size::show(object.bytes)
    ));
    Ok(())
}

/// Prints the levels, sub-levels and tables of the store.
fn show_store(arguments: &Arguments) -> Result<()> {
    let found = varve_engine::inspect_store(
        &*store::machine_to_read(&arguments.file)?,
        &engine_dir(&arguments.file),
    )?;
    show(Inspection::Store(found), arguments.json)
}

fn show_overlay(machine: &dyn Env, arguments: &Arguments) -> Result<()> {
    let path = &arguments.file;
    let found = varve_fs::inspect_overlay(machine, path).map_err(|error| {
        Error::io("read", path, &error).hint("`varve fsck STORE` finds all other damage")
    })?;
    if arguments.json {
        return output::json(&found);
    }
    output::line(found.to_string().trim_end());
    Ok(())
}

fn show_engine_file(machine: &dyn Env, arguments: &Arguments) -> Result<()> {
    let found =
        varve_engine::inspect(machine, &arguments.file, arguments.rows).map_err(|error| {
            Error::from(error).or_hint("files of a store are in STORE/engine and STORE/objects")
        })?;
    show(found, arguments.json)
}

fn show(found: Inspection, json: bool) -> Result<()> {
    if json {
        return output::json(&found);
    }
    output::line(found.to_string().trim_end());
    Ok(())
}
