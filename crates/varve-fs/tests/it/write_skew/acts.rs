//! What is done in a view, a thing at a time, so that it can be told, and done once more elsewhere.

use varve_testkit::rng::mix;
use varve_types::InodeId;
use varve_vfs::{
    Caller, FileType, FsError, FsResult, OpenFlags, RenameMode, SetAttr, Vfs, XattrMode,
};

use crate::support::{Calls, READ, WRITE, name};

/// A name in a directory.
pub(super) type Spot = (InodeId, String);

/// What was done, and what came of it; `None` if it was refused, but for locks.
pub(super) type Log = Vec<(Act, Option<Found>)>;

/// Bytes that are all alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) len: usize,
    pub(super) fill: u8,
}

/// One thing.
#[derive(Clone, Debug)]
pub(super) enum Act {
    MakeDir(Spot),
    MakeFile(Spot),
    Write(Spot, Piece),
    Cut(Spot, u64),
    Link(Spot, Spot),
    Rename(Spot, Spot, RenameMode),
    Unlink(Spot),
    RemoveDir(Spot),
    Chmod(Spot, u32),
    SetXattr(Spot, &'static [u8], Option<Vec<u8>>),
    Read(Spot),
    List(InodeId),
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Done,
    /// A directory.
    Made(InodeId),
    /// Kind and mode, and the bytes of a file as a number.
    Read(FileType, u32, u64),
    Names(Vec<String>),
}

impl Act {
    pub(super) fn apply(&self, fs: &dyn Vfs) -> FsResult<Found> {
        let done = |done: FsResult<()>| done.map(|()| Found::Done);
        let set =
            |at: &Spot, set| done(with(fs, at, |ino| fs.setattr(Caller::ROOT, ino, set).map(drop)));
        match self {
            Act::MakeDir((dir, text)) => {
                let entry = fs.mkdir(Caller::ROOT, *dir, name(text), 0o755)?;
                fs.forget(entry.attr.ino, 1);
                Ok(Found::Made(entry.attr.ino))
            }
            Act::MakeFile((dir, text)) => {
                let flags = OpenFlags { exclusive: true, ..WRITE };
                let (entry, opened) = fs.create(Caller::ROOT, *dir, name(text), 0o644, flags)?;
                let released = fs.release(entry.attr.ino, opened.handle);
                fs.forget(entry.attr.ino, 1);
                done(released)
            }
            Act::Write(at, piece) => done(with(fs, at, |ino| write(fs, ino, *piece))),
            Act::Cut(at, size) => set(at, SetAttr { size: Some(*size), ..SetAttr::default() }),
            Act::Chmod(at, perm) => set(at, SetAttr { perm: Some(*perm), ..SetAttr::default() }),
            Act::Link(at, (dir, text)) => {
                let link = |ino| fs.link(ino, *dir, name(text)).map(|_| fs.forget(ino, 1));
                done(with(fs, at, link))
            }
            Act::Rename((dir, text), (to, new), mode) => {
                done(fs.rename(*dir, name(text), *to, name(new), *mode))
            }
            Act::Unlink((dir, text)) => done(fs.unlink(*dir, name(text))),
            Act::RemoveDir((dir, text)) => done(fs.rmdir(*dir, name(text))),
            Act::SetXattr(at, attribute, value) => done(with(fs, at, |ino| match value {
                None => fs.removexattr(ino, attribute),
                Some(value) => fs.setxattr(ino, attribute, value, XattrMode::Set),
            })),
            Act::Read(at) => with(fs, at, |ino| read(fs, ino)),
            Act::List(dir) => {
                let mut names = names_in(fs, *dir)?;
                names.sort_unstable();
                Ok(Found::Names(names))
            }
        }
    }

    /// Does it, and logs it unless locks are in the way.
    pub(super) fn done(&self, fs: &dyn Vfs, log: &mut Log) -> FsResult<Found> {
        let found = self.apply(fs);
        match &found {
            Ok(found) => log.push((self.clone(), Some(found.clone()))),
            Err(FsError::Blocked(_) | FsError::DeadlockVictim | FsError::Busy) => {}
            Err(_) => log.push((self.clone(), None)),
        }
        found
    }

    /// Whether it would move a directory.
    pub(super) fn moves_dir(&self, fs: &dyn Vfs) -> bool {
        let Act::Rename(from, ..) = self else { return false };
        let attr = with(fs, from, |ino| fs.getattr(ino));
        attr.is_ok_and(|attr| attr.kind == FileType::Directory)
    }

    /// The same with other numbers of directories, unless one has none.
    pub(super) fn with_dirs(&self, of: impl Fn(InodeId) -> Option<InodeId>) -> Option<Act> {
        let mut act = self.clone();
        let dirs: Vec<&mut InodeId> = match &mut act {
            Act::Link((one, _), (other, _)) | Act::Rename((one, _), (other, _), _) => {
                vec![one, other]
            }
            Act::MakeDir((dir, _))
            | Act::MakeFile((dir, _))
            | Act::Write((dir, _), _)
            | Act::Cut((dir, _), _)
            | Act::Unlink((dir, _))
            | Act::RemoveDir((dir, _))
            | Act::Chmod((dir, _), _)
            | Act::SetXattr((dir, _), ..)
            | Act::Read((dir, _))
            | Act::List(dir) => vec![dir],
        };
        for dir in dirs {
            *dir = of(*dir)?;
        }
        Some(act)
    }
}

pub(super) fn names_in(fs: &dyn Vfs, dir: InodeId) -> FsResult<Vec<String>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, false, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })?;
    names.retain(|name| name != "." && name != "..");
    Ok(names)
}

/// Calls `act` with what is called `text` in `dir`.
fn with<T>(
    fs: &dyn Vfs,
    (dir, text): &Spot,
    act: impl FnOnce(InodeId) -> FsResult<T>,
) -> FsResult<T> {
    let ino = fs.find(*dir, text)?.ino;
    let done = act(ino);
    fs.forget(ino, 1);
    done
}

fn write(fs: &dyn Vfs, ino: InodeId, Piece { at, len, fill }: Piece) -> FsResult<()> {
    let handle = fs.open(ino, WRITE)?.handle;
    let written = fs.write(ino, handle, at, &vec![fill; len], false).map(drop);
    fs.release(ino, handle)?;
    written
}

pub(super) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(mix(bytes.len() as u64), |sum, byte| mix(sum ^ u64::from(*byte)))
}

fn read(fs: &dyn Vfs, ino: InodeId) -> FsResult<Found> {
    let attr = fs.getattr(ino)?;
    let mut bytes = 0;
    if attr.kind == FileType::Regular {
        let handle = fs.open(ino, READ)?.handle;
        let read = fs.read(ino, handle, 0, 1 << 20);
        fs.release(ino, handle)?;
        bytes = digest(&read?);
    }
    Ok(Found::Read(attr.kind, attr.perm, bytes))
}

/// Removes all that has a name.
pub(super) fn remove_all(fs: &dyn Vfs, at: &Spot, log: &mut Log) -> FsResult<()> {
    let attr = with(fs, at, |ino| fs.getattr(ino))?;
    if attr.kind != FileType::Directory {
        return Act::Unlink(at.clone()).done(fs, log).map(drop);
    }
    for below in names_in(fs, attr.ino)? {
        remove_all(fs, &(attr.ino, below), log)?;
    }
    Act::RemoveDir(at.clone()).done(fs, log).map(drop)
}
