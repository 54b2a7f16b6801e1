//! The error tables of the system calls, call by call: (what is done, what must come of it).
//!
//! Each table runs on a mount and on a plain directory of the machine's own file system; a case that holds
//! there and not on the mount is a fault of ours. Every case has a directory of its own with the same things
//! in it:
//!
//! ```text
//! file       10 bytes 0123456789, mode 0644      link      -> file
//! dir        empty                               dirlink   -> dir
//! full/sub   a directory in a directory          dangling  -> absent
//! fifo                                           loop      -> loop
//! ```

mod attributes;
mod bytes;
mod maps;
mod names;
mod opening;
mod paths;
mod permissions;
mod renames;
mod times;
mod xattrs;

use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::{Errno, Result};

use crate::harness::as_user;
use crate::semantics::Place;

/// A case: its name, what is done in its directory, and the error that must come of it, if any.
type Case = (&'static str, fn(&Path) -> Result<()>, Option<Errno>);

/// Runs every case in a directory of its own and fails with a list of those that came out otherwise.
fn all(place: &Place, cases: &[Case]) {
    let mut wrong = Vec::new();
    for (at, (name, run, wanted)) in cases.iter().enumerate() {
        let dir = place.dir().join(format!("case-{at}"));
        prepare(&dir);
        let found = run(&dir).err();
        if found != *wanted {
            wrong.push(format!("{name}: {found:?}, wanted {wanted:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn prepare(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    std::fs::write(dir.join("file"), "0123456789").unwrap();
    rustix::fs::chmod(dir.join("file"), Mode::from_raw_mode(0o644)).unwrap();
    std::fs::create_dir(dir.join("dir")).unwrap();
    std::fs::create_dir_all(dir.join("full/sub")).unwrap();
    let mode = Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    for (target, name) in
        [("file", "link"), ("dir", "dirlink"), ("absent", "dangling"), ("loop", "loop")]
    {
        symlink(target, dir.join(name)).unwrap();
    }
}

fn open(path: impl AsRef<Path>, flags: OFlags) -> Result<rustix::fd::OwnedFd> {
    rustix::fs::open(path.as_ref(), flags, Mode::from_raw_mode(0o644))
}

/// Fails with EIO, which no case wants, unless `holds`.
fn check(holds: bool) -> Result<()> {
    if holds { Ok(()) } else { Err(Errno::IO) }
}
