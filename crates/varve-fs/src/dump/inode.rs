//! An inode as a line, and back.

use varve_schema::{
    Content, DirInfo, FileKind, Home, INLINE_BYTES_MAX, Inode, NameHasher, STORED_FILE_BYTES_MAX,
    SharedContent, Times, Usage,
};
use varve_types::limits::{FILE_BYTES_MAX, SYMLINK_BYTES_MAX};
use varve_types::{InodeId, Timestamp};
use varve_vfs::FsResult;

use super::line::{Base64, DirLine, InodeLine, Kind, Letters, Stored, Text};
use super::wrong::wrong;

/// The line of an inode without its name and its attributes.
pub(super) fn line_of(inode: &Inode, parent: InodeId) -> InodeLine {
    let time = |time: Timestamp| (time.secs(), time.nanos());
    let mut line = InodeLine {
        ino: inode.ino.get(),
        kind: inode.kind.into(),
        parent: parent.get(),
        name: None,
        home: None,
        perm: inode.perm,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        size: inode.size,
        atime: time(inode.times.atime),
        mtime: time(inode.times.mtime),
        ctime: time(inode.times.ctime),
        btime: time(inode.times.btime),
        flags: Letters(inode.flags),
        xattrs: 0,
        target: None,
        data: None,
        stored: None,
        dir: None,
    };
    match &inode.content {
        Content::None => {}
        Content::Inline(bytes) => line.data = Some(Base64(bytes.to_vec())),
        Content::Symlink(target) => line.target = Some(Text(target.to_vec())),
        Content::Chunks => line.stored = Some(Stored::Rows),
        Content::Object { .. } => line.stored = Some(Stored::File),
        Content::Shared(SharedContent { blocks: None, .. }) => line.stored = Some(Stored::Rows),
        Content::Shared(_) => line.stored = Some(Stored::File),
        Content::Directory(info) => {
            line.dir = Some(Box::new(DirLine {
                entries: info.entries,
                subdirs: info.subdirs,
                bytes_below: info.usage.bytes,
                files_below: info.usage.files,
                dirs_below: info.usage.dirs,
            }));
        }
    }
    line
}

/// The inode of a line. What of it depends on the storage below comes later.
pub(super) fn inode_of(
    hasher: &NameHasher,
    ino: InodeId,
    parent: InodeId,
    line: InodeLine,
) -> FsResult<Inode> {
    let kind = FileKind::from(line.kind);
    let time = |member: &str, (secs, nanos): (i64, u32)| {
        Timestamp::new(secs, nanos)
            .ok_or_else(|| wrong(format!("{member}: {nanos} nanoseconds are a second or more")))
    };
    let times = Times {
        atime: time("atime", line.atime)?,
        mtime: time("mtime", line.mtime)?,
        ctime: time("ctime", line.ctime)?,
        btime: time("btime", line.btime)?,
    };
    if line.perm > 0o7777 {
        return Err(wrong("perm: more bits than 0o7777"));
    }
    let home = match (&line.home, &line.name) {
        (Some(Text(name)), None) => Some(Home { dir: parent, hash: hasher.parent(parent, name) }),
        (None, None) if ino != InodeId::ROOT => return Err(wrong("name: neither it nor a home")),
        (None, _) => None,
        (Some(_), Some(_)) => return Err(wrong("home: only a file with several names has one")),
    };
    if kind == FileKind::Directory && home.is_some() {
        return Err(wrong("home: a directory has none"));
    }
    if line.size > FILE_BYTES_MAX {
        return Err(wrong(format!("size: {} bytes, more than a file can have", line.size)));
    }
    let Letters(flags) = line.flags;
    if !flags.is_empty() && !kind.has_flags() {
        return Err(wrong("flags: only files and directories have some"));
    }
    let (nlink, uid, gid, rdev, size) = (line.nlink, line.uid, line.gid, line.rdev, line.size);
    let (perm, has_xattrs) = (line.perm, line.xattrs > 0);
    let content = content_of(kind, hasher, parent, line)?;
    Ok(Inode {
        ino,
        kind,
        perm,
        nlink,
        uid,
        gid,
        rdev,
        size,
        times,
        has_xattrs,
        flags,
        home,
        content,
    })
}

fn content_of(
    kind: FileKind,
    hasher: &NameHasher,
    parent: InodeId,
    line: InodeLine,
) -> FsResult<Content> {
    let InodeLine { size, name, target, data, stored, dir, .. } = line;
    match (kind, target, data, stored, dir) {
        (FileKind::Directory, None, None, None, Some(dir)) => {
            let suffix = name.map(|Text(name)| hasher.entry(&name));
            let usage =
                Usage { bytes: dir.bytes_below, files: dir.files_below, dirs: dir.dirs_below };
            let (entries, subdirs) = (dir.entries, dir.subdirs);
            let empty = DirInfo::new(parent, suffix);
            Ok(Content::Directory(DirInfo { entries, subdirs, usage, ..empty }))
        }
        (FileKind::Symlink, Some(Text(target)), None, None, None)
            if target.len() <= SYMLINK_BYTES_MAX =>
        {
            Ok(Content::Symlink(target.into()))
        }
        (FileKind::Regular, None, Some(Base64(bytes)), None, None)
            if bytes.len() <= INLINE_BYTES_MAX && size <= STORED_FILE_BYTES_MAX =>
        {
            Ok(Content::Inline(bytes.into()))
        }
        (FileKind::Regular, None, None, Some(Stored::Rows), None)
            if size <= STORED_FILE_BYTES_MAX =>
        {
            Ok(Content::Chunks)
        }
        (FileKind::Regular, None, None, Some(Stored::File), None) => {
            Ok(Content::Object { dirty: false, blocks: 0 })
        }
        (FileKind::Directory | FileKind::Symlink, ..) => {
            Err(wrong("kind: a directory needs `dir`, a symbolic link `target`, and nothing else"))
        }
        (_, None, None, None, None) => Ok(Content::None),
        _ => Err(wrong("kind: content that does not fit it, or more than fits")),
    }
}

impl From<FileKind> for Kind {
    fn from(kind: FileKind) -> Kind {
        match kind {
            FileKind::Fifo => Kind::Fifo,
            FileKind::CharDevice => Kind::CharDevice,
            FileKind::Directory => Kind::Directory,
            FileKind::BlockDevice => Kind::BlockDevice,
            FileKind::Regular => Kind::Regular,
            FileKind::Symlink => Kind::Symlink,
            FileKind::Socket => Kind::Socket,
        }
    }
}

impl From<Kind> for FileKind {
    fn from(kind: Kind) -> FileKind {
        match kind {
            Kind::Fifo => FileKind::Fifo,
            Kind::CharDevice => FileKind::CharDevice,
            Kind::Directory => FileKind::Directory,
            Kind::BlockDevice => FileKind::BlockDevice,
            Kind::Regular => FileKind::Regular,
            Kind::Symlink => FileKind::Symlink,
            Kind::Socket => FileKind::Socket,
        }
    }
}
