//! The benchmark's operations through the library: no kernel, no mount.
//!
//! `libbench --files N --dirs D STORE` formats STORE (a directory that must not exist yet), runs each
//! operation on every file, and prints one JSON object of operation to microseconds per operation. The names
//! are those of `cargo xtask bench`, which runs this program. "stat cold", "readdir" and "ls -l" come after
//! closing and opening the store.
#![allow(clippy::disallowed_methods, reason = "a benchmark asks the clock itself")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use varve::work::{Library, Place};
use varve::{Error, FileSystem, Result, store};
use varve_fs::{FormatOptions, MountOptions};

/// What to measure.
#[derive(Parser)]
struct Arguments {
    /// Files in all
    #[arg(long, default_value_t = 200_000)]
    files: u64,
    /// Directories they are spread over
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    dirs: u64,
    /// The store to make
    store: PathBuf,
}

/// Names of directories and files, made before the clock runs.
struct Names {
    dirs: Vec<String>,
    /// Position of the directory, old name, new name.
    files: Vec<(usize, String, String)>,
}

impl Names {
    fn new(files: u64, dirs: u64) -> Names {
        let per_dir = files.div_ceil(dirs);
        let file = |at: u64| {
            let dir = usize::try_from(at / per_dir).unwrap_or(0);
            (dir, format!("file-{at:07}"), format!("moved-{at:07}"))
        };
        Names {
            dirs: (0..dirs).map(|dir| format!("d{dir:04}")).collect(),
            files: (0..files).map(file).collect(),
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let names = Names::new(arguments.files, arguments.dirs);
    let mut figures = BTreeMap::new();
    store::format(&arguments.store, &FormatOptions::default())?;
    session(&arguments, |place| {
        each_dir("mkdir", &names, &mut figures, |dir| place.make_dir(dir))?;
        each_file("create", &names, &mut figures, |dir, old, _| place.create(dir, old))
    })?;
    session(&arguments, |place| {
        each_file("stat cold", &names, &mut figures, |dir, old, _| place.stat(dir, old).map(drop))?;
        each_file("stat cached", &names, &mut figures, |dir, old, _| place.stat(dir, old).map(drop))
    })?;
    session(&arguments, |place| {
        list(place, "readdir", &names, &mut figures, |place, dir| place.count(dir))
    })?;
    session(&arguments, |place| {
        list(place, "ls -l", &names, &mut figures, |place, dir| Ok(place.list(dir)?.len() as u64))?;
        each_file("chmod", &names, &mut figures, |dir, old, _| place.chmod(dir, old, 0o600))?;
        each_file("rename", &names, &mut figures, |dir, old, new| place.rename(dir, old, new))?;
        each_file("unlink", &names, &mut figures, |dir, _, new| place.unlink(dir, new))?;
        each_dir("rmdir", &names, &mut figures, |dir| place.remove_dir(dir))
    })?;
    let text = serde_json::to_string_pretty(&figures)
        .map_err(|error| Error::failed(format!("cannot write JSON: {error}")))?;
    println!("{text}");
    Ok(())
}

/// Opens the store for `body` and closes it.
fn session(arguments: &Arguments, body: impl FnOnce(&Library) -> Result<()>) -> Result<()> {
    let file_system = FileSystem::open(&arguments.store, &MountOptions::default())?;
    body(&Library::new(file_system.vfs()))?;
    file_system.close()
}

fn timed(
    name: &str,
    count: usize,
    figures: &mut BTreeMap<String, f64>,
    body: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let begin = Instant::now();
    body()?;
    figures.insert(name.to_owned(), begin.elapsed().as_secs_f64() * 1e6 / count.max(1) as f64);
    Ok(())
}

fn each_dir(
    name: &str,
    names: &Names,
    figures: &mut BTreeMap<String, f64>,
    operation: impl Fn(&str) -> Result<()>,
) -> Result<()> {
    timed(name, names.dirs.len(), figures, || names.dirs.iter().try_for_each(|dir| operation(dir)))
}

fn each_file(
    name: &str,
    names: &Names,
    figures: &mut BTreeMap<String, f64>,
    operation: impl Fn(&str, &str, &str) -> Result<()>,
) -> Result<()> {
    timed(name, names.files.len(), figures, || {
        names.files.iter().try_for_each(|(dir, old, new)| operation(&names.dirs[*dir], old, new))
    })
}

/// Lists every directory; checks the number of names.
fn list(
    place: &Library,
    name: &str,
    names: &Names,
    figures: &mut BTreeMap<String, f64>,
    count: impl Fn(&Library, &str) -> Result<u64>,
) -> Result<()> {
    timed(name, names.files.len(), figures, || {
        let mut found = 0;
        for dir in &names.dirs {
            found += count(place, dir)?;
        }
        if found == names.files.len() as u64 {
            return Ok(());
        }
        Err(Error::failed(format!("{name}: {found} names instead of {}", names.files.len())))
    })
}
