//! What another user than the owner may do, and what only root may.

use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, Uid,
    XattrFlags,
};
use rustix::io::{Errno, Result};
use varve_testkit::{Command, put_program};

use super::{Case, all, as_user, check, open};
use crate::semantics::{Place, semantics};

semantics!(permissions_table);

const USER: u32 = 1000;
const GROUP: u32 = 2000;

fn user<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    as_user(USER, GROUP, &[], body)
}

fn mode(path: impl AsRef<Path>, mode: u32) -> Result<()> {
    rustix::fs::chmod(path.as_ref(), Mode::from_raw_mode(mode))
}

fn own(path: impl AsRef<Path>, uid: u32, gid: u32) -> Result<()> {
    rustix::fs::chown(path.as_ref(), Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
}

fn perm(path: impl AsRef<Path>) -> Result<u32> {
    rustix::fs::stat(path.as_ref()).map(|stat| stat.st_mode & 0o7777)
}

fn touch(path: &Path, nsec: i64) -> Result<()> {
    let time = Timespec { tv_sec: 1, tv_nsec: nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())
}

/// A directory with the sticky bit that all may write, with a file of the user `owner` in it.
fn sticky(dir: &Path, owner: u32) -> Result<()> {
    mode(dir.join("dir"), 0o1777)?;
    std::fs::write(dir.join("dir/x"), "").unwrap();
    own(dir.join("dir/x"), owner, owner)
}

const CASES: &[Case] = &[
    ("others may read 0644", |d| user(|| open(d.join("file"), OFlags::RDONLY).map(drop)), None),
    (
        "others may not write 0644",
        |d| user(|| open(d.join("file"), OFlags::WRONLY).map(drop)),
        Some(Errno::ACCESS),
    ),
    (
        "nor cut it",
        |d| user(|| open(d.join("file"), OFlags::RDONLY | OFlags::TRUNC).map(drop)),
        Some(Errno::ACCESS),
    ),
    (
        "nor read 0640",
        |d| {
            mode(d.join("file"), 0o640)?;
            user(|| open(d.join("file"), OFlags::RDONLY).map(drop))
        },
        Some(Errno::ACCESS),
    ),
    (
        "the group may read 0640",
        |d| {
            mode(d.join("file"), 0o640)?;
            own(d.join("file"), 0, GROUP)?;
            user(|| open(d.join("file"), OFlags::RDONLY).map(drop))
        },
        None,
    ),
    (
        "a supplementary group too",
        |d| {
            mode(d.join("file"), 0o640)?;
            own(d.join("file"), 0, 77)?;
            as_user(USER, GROUP, &[76, 77], || open(d.join("file"), OFlags::RDONLY).map(drop))
        },
        None,
    ),
    (
        "the owner is bound by the owner's bits",
        |d| {
            mode(d.join("file"), 0o077)?;
            own(d.join("file"), USER, 0)?;
            user(|| open(d.join("file"), OFlags::RDONLY).map(drop))
        },
        Some(Errno::ACCESS),
    ),
    (
        "the group by the group's",
        |d| {
            mode(d.join("file"), 0o606)?;
            own(d.join("file"), 0, GROUP)?;
            user(|| open(d.join("file"), OFlags::RDONLY).map(drop))
        },
        Some(Errno::ACCESS),
    ),
    (
        "no creating without the right to write",
        |d| user(|| open(d.join("dir/new"), OFlags::CREATE | OFlags::RDWR).map(drop)),
        Some(Errno::ACCESS),
    ),
    (
        "no mkdir",
        |d| user(|| rustix::fs::mkdir(d.join("dir/new"), Mode::RWXU)),
        Some(Errno::ACCESS),
    ),
    ("no symlink", |d| user(|| rustix::fs::symlink("x", d.join("dir/new"))), Some(Errno::ACCESS)),
    (
        "no mknod",
        |d| user(|| rustix::fs::mknodat(CWD, d.join("dir/new"), FileType::Fifo, Mode::RWXU, 0)),
        Some(Errno::ACCESS),
    ),
    (
        "no O_TMPFILE",
        |d| user(|| open(d.join("dir"), OFlags::TMPFILE | OFlags::RDWR).map(drop)),
        Some(Errno::ACCESS),
    ),
    ("no unlink", |d| user(|| rustix::fs::unlink(d.join("file"))), Some(Errno::ACCESS)),
    ("no rmdir", |d| user(|| rustix::fs::rmdir(d.join("dir"))), Some(Errno::ACCESS)),
    (
        "no rename",
        |d| user(|| rustix::fs::rename(d.join("file"), d.join("new"))),
        Some(Errno::ACCESS),
    ),
    (
        "what exists is EEXIST all the same",
        |d| user(|| rustix::fs::mkdir(d.join("dir"), Mode::RWXU)),
        Some(Errno::EXIST),
    ),
    (
        "unlink needs no right to the file",
        |d| {
            mode(d, 0o777)?;
            user(|| rustix::fs::unlink(d.join("file")))
        },
        None,
    ),
    (
        "a directory moved to another parent must be writable",
        |d| {
            mode(d.join("full"), 0o777)?;
            mode(d.join("dir"), 0o777)?;
            user(|| rustix::fs::rename(d.join("full/sub"), d.join("dir/sub")))
        },
        Some(Errno::ACCESS),
    ),
    (
        "listing needs the right to read",
        |d| {
            mode(d.join("dir"), 0o711)?;
            user(|| open(d.join("dir"), OFlags::RDONLY).map(drop))
        },
        Some(Errno::ACCESS),
    ),
    (
        "searching does not",
        |d| {
            mode(d.join("full"), 0o711)?;
            user(|| rustix::fs::stat(d.join("full/sub")).map(drop))
        },
        None,
    ),
    (
        "sticky: not what is another's",
        |d| {
            sticky(d, 5)?;
            user(|| rustix::fs::unlink(d.join("dir/x")))
        },
        Some(Errno::PERM),
    ),
    (
        "sticky: nor renamed",
        |d| {
            sticky(d, 5)?;
            user(|| rustix::fs::rename(d.join("dir/x"), d.join("dir/y")))
        },
        Some(Errno::PERM),
    ),
    (
        "sticky: nor replaced",
        |d| {
            sticky(d, 5)?;
            user(|| {
                drop(open(d.join("dir/mine"), OFlags::CREATE | OFlags::RDWR)?);
                rustix::fs::rename(d.join("dir/mine"), d.join("dir/x"))
            })
        },
        Some(Errno::PERM),
    ),
    (
        "sticky: what is one's own",
        |d| {
            sticky(d, USER)?;
            user(|| rustix::fs::unlink(d.join("dir/x")))
        },
        None,
    ),
    (
        "sticky: the directory's owner may",
        |d| {
            sticky(d, 5)?;
            own(d.join("dir"), USER, 0)?;
            user(|| rustix::fs::unlink(d.join("dir/x")))
        },
        None,
    ),
    (
        "sticky: a directory of another's",
        |d| {
            mode(d.join("dir"), 0o1777)?;
            rustix::fs::mkdir(d.join("dir/x"), Mode::RWXU)?;
            user(|| rustix::fs::rmdir(d.join("dir/x")))
        },
        Some(Errno::PERM),
    ),
    ("chmod is the owner's", |d| user(|| mode(d.join("file"), 0o777)), Some(Errno::PERM)),
    (
        "by the owner",
        |d| {
            own(d.join("file"), USER, 0)?;
            user(|| mode(d.join("file"), 0o777))
        },
        None,
    ),
    (
        "chmod by the owner outside the group takes set-group-id",
        |d| {
            own(d.join("file"), USER, 77)?;
            user(|| mode(d.join("file"), 0o2755))?;
            check(perm(d.join("file"))? == 0o755)
        },
        None,
    ),
    (
        "inside the group it stays",
        |d| {
            own(d.join("file"), USER, GROUP)?;
            user(|| mode(d.join("file"), 0o2755))?;
            check(perm(d.join("file"))? == 0o2755)
        },
        None,
    ),
    (
        "the sticky bit of a file by its owner",
        |d| {
            own(d.join("file"), USER, GROUP)?;
            user(|| mode(d.join("file"), 0o1644))?;
            check(perm(d.join("file"))? == 0o1644)
        },
        None,
    ),
    (
        "chown is root's",
        |d| {
            own(d.join("file"), USER, GROUP)?;
            user(|| own(d.join("file"), 5, GROUP))
        },
        Some(Errno::PERM),
    ),
    (
        "chown to oneself by a stranger",
        |d| user(|| own(d.join("file"), USER, GROUP)),
        Some(Errno::PERM),
    ),
    (
        "the owner may give it to a group of his",
        |d| {
            own(d.join("file"), USER, GROUP)?;
            as_user(USER, GROUP, &[76], || own(d.join("file"), USER, 76))
        },
        None,
    ),
    (
        "but to no other",
        |d| {
            own(d.join("file"), USER, GROUP)?;
            user(|| own(d.join("file"), USER, 76))
        },
        Some(Errno::PERM),
    ),
    (
        "chgrp by the owner takes the set-id bits",
        |d| {
            own(d.join("file"), USER, GROUP)?;
            mode(d.join("file"), 0o6755)?;
            as_user(USER, GROUP, &[76], || own(d.join("file"), USER, 76))?;
            check(perm(d.join("file"))? == 0o755)
        },
        None,
    ),
    (
        "a stranger's write takes the set-id bits",
        |d| {
            mode(d.join("file"), 0o6777)?;
            user(|| rustix::io::write(open(d.join("file"), OFlags::WRONLY)?, b"x"))?;
            check(perm(d.join("file"))? == 0o777)
        },
        None,
    ),
    (
        "and the owner's",
        |d| {
            own(d.join("file"), USER, GROUP)?;
            mode(d.join("file"), 0o6777)?;
            user(|| rustix::io::write(open(d.join("file"), OFlags::WRONLY)?, b"x"))?;
            check(perm(d.join("file"))? == 0o777)
        },
        None,
    ),
    (
        "root's does not",
        |d| {
            mode(d.join("file"), 0o6777)?;
            rustix::io::write(open(d.join("file"), OFlags::WRONLY)?, b"x")?;
            check(perm(d.join("file"))? == 0o6777)
        },
        None,
    ),
    (
        "a stranger's truncation takes them",
        |d| {
            mode(d.join("file"), 0o6777)?;
            user(|| rustix::fs::ftruncate(open(d.join("file"), OFlags::WRONLY)?, 3))?;
            check(perm(d.join("file"))? == 0o777)
        },
        None,
    ),
    (
        "and O_TRUNC",
        |d| {
            mode(d.join("file"), 0o6777)?;
            user(|| open(d.join("file"), OFlags::WRONLY | OFlags::TRUNC).map(drop))?;
            check(perm(d.join("file"))? == 0o777)
        },
        None,
    ),
    (
        "of a large file too",
        |d| {
            std::fs::write(d.join("file"), vec![1; 200_000]).unwrap();
            mode(d.join("file"), 0o6777)?;
            user(|| rustix::io::write(open(d.join("file"), OFlags::WRONLY)?, b"x"))?;
            check(perm(d.join("file"))? == 0o777)
        },
        None,
    ),
    (
        "utimensat to a time is the owner's",
        |d| {
            mode(d.join("file"), 0o666)?;
            user(|| touch(&d.join("file"), 5))
        },
        Some(Errno::PERM),
    ),
    (
        "to now is for those who may write",
        |d| {
            mode(d.join("file"), 0o666)?;
            user(|| touch(&d.join("file"), UTIME_NOW))
        },
        None,
    ),
    ("and for no others", |d| user(|| touch(&d.join("file"), UTIME_NOW)), Some(Errno::ACCESS)),
    (
        "O_NOATIME is the owner's",
        |d| user(|| open(d.join("file"), OFlags::NOATIME).map(drop)),
        Some(Errno::PERM),
    ),
    (
        "a device by a user",
        |d| {
            mode(d, 0o777)?;
            user(|| {
                rustix::fs::mknodat(CWD, d.join("new"), FileType::CharacterDevice, Mode::RWXU, 259)
            })
        },
        Some(Errno::PERM),
    ),
    (
        "a fifo by a user",
        |d| {
            mode(d, 0o777)?;
            user(|| rustix::fs::mknodat(CWD, d.join("new"), FileType::Fifo, Mode::RWXU, 0))
        },
        None,
    ),
    (
        "new files are the user's",
        |d| {
            mode(d, 0o777)?;
            user(|| open(d.join("new"), OFlags::CREATE | OFlags::RDWR).map(drop))?;
            let stat = rustix::fs::stat(d.join("new"))?;
            check(stat.st_uid == USER && stat.st_gid == GROUP)
        },
        None,
    ),
    (
        "in a set-group-id directory the group's",
        |d| {
            own(d.join("dir"), 0, 77)?;
            mode(d.join("dir"), 0o2777)?;
            user(|| rustix::fs::mkdir(d.join("dir/new"), Mode::RWXU))?;
            check(
                rustix::fs::stat(d.join("dir/new"))?.st_gid == 77
                    && perm(d.join("dir/new"))? & 0o2000 != 0,
            )
        },
        None,
    ),
    (
        "a file there by one outside the group loses set-group-id",
        |d| {
            own(d.join("dir"), 0, 77)?;
            mode(d.join("dir"), 0o2777)?;
            user(|| {
                rustix::fs::open(
                    d.join("dir/new"),
                    OFlags::CREATE | OFlags::RDWR,
                    Mode::from_raw_mode(0o2770),
                )
                .map(drop)
            })?;
            check(perm(d.join("dir/new"))? & 0o2000 == 0)
        },
        None,
    ),
    (
        "access: reading 0644",
        |d| user(|| rustix::fs::access(d.join("file"), Access::READ_OK)),
        None,
    ),
    (
        "access: writing 0644",
        |d| user(|| rustix::fs::access(d.join("file"), Access::WRITE_OK)),
        Some(Errno::ACCESS),
    ),
    (
        "access: executing 0644",
        |d| user(|| rustix::fs::access(d.join("file"), Access::EXEC_OK)),
        Some(Errno::ACCESS),
    ),
    (
        "access: executing 0644 as root",
        |d| rustix::fs::access(d.join("file"), Access::EXEC_OK),
        Some(Errno::ACCESS),
    ),
    (
        "access: writing 0444 as root",
        |d| {
            mode(d.join("file"), 0o444)?;
            rustix::fs::access(d.join("file"), Access::WRITE_OK)
        },
        None,
    ),
    (
        "access: executing 0001 as root",
        |d| {
            mode(d.join("file"), 0o001)?;
            rustix::fs::access(d.join("file"), Access::EXEC_OK)
        },
        None,
    ),
    (
        "access: a directory 0000 as root",
        |d| {
            mode(d.join("dir"), 0)?;
            rustix::fs::access(d.join("dir"), Access::EXEC_OK)
        },
        None,
    ),
    (
        "executing 0644 as root",
        |d| {
            let error = Command::new(d.join("file")).spawn().unwrap_err();
            Err(Errno::from_io_error(&error).unwrap())
        },
        Some(Errno::ACCESS),
    ),
    (
        "executing what is no program",
        |d| {
            mode(d.join("file"), 0o755)?;
            let error = Command::new(d.join("file")).spawn().unwrap_err();
            Err(Errno::from_io_error(&error).unwrap())
        },
        Some(Errno::NOEXEC),
    ),
    (
        "executing a program",
        |d| {
            put_program("/bin/true", d.join("true"));
            check(Command::new(d.join("true")).status().is_ok_and(|status| status.success()))
        },
        None,
    ),
    (
        "user attributes need the right to write",
        |d| user(|| rustix::fs::setxattr(d.join("file"), "user.x", b"1", XattrFlags::empty())),
        Some(Errno::ACCESS),
    ),
    (
        "to read them the right to read",
        |d| {
            rustix::fs::setxattr(d.join("file"), "user.x", b"1", XattrFlags::empty())?;
            mode(d.join("file"), 0o600)?;
            user(|| rustix::fs::getxattr(d.join("file"), "user.x", &mut [0; 9]).map(drop))
        },
        Some(Errno::ACCESS),
    ),
    (
        "trusted attributes are root's",
        |d| {
            mode(d.join("file"), 0o666)?;
            user(|| rustix::fs::setxattr(d.join("file"), "trusted.x", b"1", XattrFlags::empty()))
        },
        Some(Errno::PERM),
    ),
    (
        "and unseen by others",
        |d| {
            rustix::fs::setxattr(d.join("file"), "trusted.x", b"1", XattrFlags::empty())?;
            user(|| rustix::fs::getxattr(d.join("file"), "trusted.x", &mut [0; 9]).map(drop))
        },
        Some(Errno::NODATA),
    ),
    (
        "user attributes of a sticky directory are its owner's",
        |d| {
            mode(d.join("dir"), 0o1777)?;
            user(|| rustix::fs::setxattr(d.join("dir"), "user.x", b"1", XattrFlags::empty()))
        },
        Some(Errno::PERM),
    ),
];

fn permissions_table(place: &Place) {
    mode(place.dir(), 0o755).unwrap();
    all(place, CASES);
}
