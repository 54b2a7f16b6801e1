//! A writer process: does its steps and tells each, once the call has returned, on its standard output.
//!
//! It ends when its directory is gone with the daemon (a call fails with ENOTCONN, ECONNABORTED, EIO, or with
//! ECANCELED if it was on its way over io_uring), and with another exit status if a call fails in any other
//! way.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::model::{Model, Step};
use crate::run::{Failure, Outcome};

/// The attribute that the writers set.
pub(super) const XATTR: &str = "user.step";

/// Files that a writer keeps open, so that bytes also go through handles older than their names.
const OPEN_MAX: usize = 6;

/// What the process is told.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The directory that holds `shared` and the writer's own directory
    dir: PathBuf,
    /// The writer's number, which is in its names
    number: u64,
    /// Seed of its steps
    seed: u64,
}

/// Writes until the file system is gone.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let mut model = Model::new(arguments.seed);
    let mut hands = Hands::new(&arguments.dir, arguments.number);
    let mut told = std::io::stdout();
    loop {
        let step = model.next();
        match hands.perform(&step) {
            Ok(()) => {}
            Err(error) if is_gone(&error, &arguments.dir) => return Ok(()),
            Err(error) => return Err(Failure::from(format!("{step:?}: {error}"))),
        }
        model.apply(&step);
        told.write_all(if matches!(step, Step::Sync { .. }) { b"s" } else { b"." })?;
        told.flush()?;
    }
}

/// A dead mount answers so; once it is taken away, its directories are not there.
fn is_gone(error: &std::io::Error, dir: &Path) -> bool {
    let gone = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED, Errno::IO];
    gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
        || (error.kind() == std::io::ErrorKind::NotFound && !dir.exists())
}

/// Does steps to a directory.
pub(super) struct Hands {
    dir: PathBuf,
    number: u64,
    open: HashMap<String, File>,
}

impl Hands {
    pub(super) fn new(dir: &Path, number: u64) -> Hands {
        Hands { dir: dir.to_path_buf(), number, open: HashMap::new() }
    }

    /// Where a path of the model lies: `own/...` in a directory of this writer, `shared/NAME...` beside the
    /// names of all others.
    pub(super) fn place(&self, path: &str) -> PathBuf {
        match path.split_once('/') {
            Some(("shared", rest)) => {
                self.dir.join("shared").join(format!("{}-{rest}", self.number))
            }
            _ => self.dir.join(format!("writer-{}", self.number)).join(path),
        }
    }

    pub(super) fn perform(&mut self, step: &Step) -> std::io::Result<()> {
        match step {
            Step::Create { path, mode } => self.create(path, *mode),
            Step::Write { path, offset, bytes } => {
                self.file(path)?.write_all_at(&bytes.make(), *offset)
            }
            Step::Append { path, bytes } => {
                let mut file = OpenOptions::new().append(true).open(self.place(path))?;
                file.write_all(&bytes.make())
            }
            Step::Truncate { path, size } => self.file(path)?.set_len(*size),
            Step::Chmod { path, mode } => {
                fs::set_permissions(self.place(path), fs::Permissions::from_mode(*mode))
            }
            Step::SetXattr { path, value } => {
                let set = rustix::fs::setxattr(
                    self.place(path),
                    XATTR,
                    value.as_bytes(),
                    XattrFlags::empty(),
                );
                set.map_err(Into::into)
            }
            Step::Rename { from, to } => {
                fs::rename(self.place(from), self.place(to))?;
                self.open.remove(to);
                if let Some(file) = self.open.remove(from) {
                    self.open.insert(to.clone(), file);
                }
                Ok(())
            }
            Step::Link { from, to } => fs::hard_link(self.place(from), self.place(to)),
            Step::Unlink { path } => {
                fs::remove_file(self.place(path))?;
                self.open.remove(path);
                Ok(())
            }
            Step::Symlink { path, target } => symlink(target, self.place(path)),
            Step::MakeDir { path } => fs::create_dir(self.place(path)),
            Step::RemoveDir { path } => fs::remove_dir(self.place(path)),
            Step::Sync { path } => self.file(path)?.sync_all(),
        }
    }

    fn create(&mut self, path: &str, mode: u32) -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create_new(true).mode(mode).open(self.place(path))?;
        if self.open.len() < OPEN_MAX {
            self.open.insert(path.to_owned(), file);
        }
        Ok(())
    }

    /// The file, open for reading and writing.
    fn file(&mut self, path: &str) -> std::io::Result<&File> {
        if !self.open.contains_key(path) {
            if self.open.len() >= OPEN_MAX
                && let Some(any) = self.open.keys().next().cloned()
            {
                self.open.remove(&any);
            }
            let file = OpenOptions::new().read(true).write(true).open(self.place(path))?;
            self.open.insert(path.to_owned(), file);
        }
        Ok(&self.open[path])
    }
}
