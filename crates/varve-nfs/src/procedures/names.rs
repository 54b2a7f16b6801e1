//! Procedures that find, make, remove, move and link names.
//!
//! 1. A procedure decodes handles and names, and checks the caller's rights.
//! 2. It makes the call of the file system.
//! 3. It makes the directory durable and encodes the result.
//!
//! Invariant: a change is durable before the answer, unless the export is `async`.

use varve_types::{FileName, NameError, Timestamp};
use varve_vfs::{
    AccessMode, Attr, Entry, FileType, FsError, OpenFlags, RenameMode, SetAttr, SetTime,
};

use super::{Answer, permitted, read_attributes};
use crate::handle::FileHandle;
use crate::service::{Failure, Request, name, put_attr_after, put_change};
use crate::status::Status;
use crate::xdr::{Garbage, Reader, Writer};

/// The longest target of a symbolic link that is decoded.
const TARGET_BYTES_MAX: usize = 4096;

/// Decodes a name for a new object.
fn new_name<'a>(reader: &mut Reader<'a>) -> Result<FileName<'a>, Failure> {
    match FileName::new(name(reader)?) {
        Err(NameError::Reserved) => Err(Status::EXISTS.into()),
        name => Ok(name.map_err(FsError::from)?),
    }
}

/// Decodes a name that will be removed.
fn old_name<'a>(reader: &mut Reader<'a>) -> Result<FileName<'a>, Failure> {
    Ok(FileName::new(name(reader)?).map_err(FsError::from)?)
}

/// Returns the attributes of a directory; `None` after an error, because the change is done already.
fn after(request: &Request<'_>, dir: &FileHandle) -> Option<Attr> {
    request.attr(dir).ok()
}

pub(super) fn lookup(request: &Request<'_>, dir: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let name = name(reader)?;
    let attr = request.attr(dir)?;
    if attr.kind != FileType::Directory {
        return Err(Status::NOT_DIRECTORY.into());
    }
    request.require_search(dir.ino)?;
    let service = request.service;
    let (handle, found) = match name {
        b"." => (*dir, attr),
        b".." if dir.ino == request.export => (*dir, attr),
        b".." => {
            let entry = request.on(dir, |ino| request.vfs().lookup_parent(ino))?;
            service.looked_up.note(&*service.vfs, entry.attr.ino);
            (FileHandle { ino: entry.attr.ino, parent: None, ..*dir }, entry.attr)
        }
        name => {
            let name = FileName::new(name).map_err(FsError::from)?;
            let entry = request.on(dir, |ino| request.vfs().lookup(ino, name))?;
            (request.found(dir.ino, &entry), entry.attr)
        }
    };
    let mut writer = Writer::new();
    writer.opaque(&handle.encode());
    put_attr_after(&mut writer, service.file_system, Some(&found));
    put_attr_after(&mut writer, service.file_system, Some(&attr));
    Ok(writer)
}

/// Encodes the new object and its directory.
fn made(request: &Request<'_>, dir: &FileHandle, entry: &Entry) -> Answer {
    request.make_durable(dir.ino)?;
    let handle = request.found(dir.ino, entry);
    let mut writer = Writer::new();
    writer.bool(true);
    writer.opaque(&handle.encode());
    put_attr_after(&mut writer, request.service.file_system, Some(&entry.attr));
    put_change(&mut writer, request.service.file_system, after(request, dir).as_ref());
    Ok(writer)
}

/// Sets the attributes that a call gives a new object besides the mode.
fn with_attributes(request: &Request<'_>, entry: Entry, set: SetAttr) -> Result<Entry, Failure> {
    let set = SetAttr { perm: None, ..set };
    if set == SetAttr::default() {
        return Ok(entry);
    }
    let set = permitted(request, &entry.attr, set)?;
    let call = || request.vfs().setattr(request.caller(), entry.attr.ino, set);
    Ok(Entry::of(request.service.settled(call)?))
}

/// Returns the times that mark a file as made by an exclusive call with this verifier.
fn times_of(verifier: &[u8]) -> Option<[Timestamp; 2]> {
    let (one, other) = verifier.split_first_chunk::<4>()?;
    let number = |bytes: [u8; 4]| Timestamp::new(u32::from_be_bytes(bytes).into(), 0);
    Some([number(*one)?, number(other.try_into().ok()?)?])
}

pub(super) fn create(request: &Request<'_>, dir: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let name = new_name(reader)?;
    let (mode, mut set) = match reader.u32()? {
        mode @ (0 | 1) => (mode, read_attributes(reader)?),
        2 => {
            let times = times_of(reader.fixed(8)?).ok_or(Garbage("no verifier"))?;
            let [atime, mtime] = times.map(|time| Some(SetTime::To(time)));
            (2, SetAttr { perm: Some(0), atime, mtime, ..SetAttr::default() })
        }
        _ => return Err(Failure::Garbage),
    };
    request.require_search(dir.ino)?;
    let found = match request.peek(dir.ino, name) {
        Ok(attr) => Some(attr),
        Err(FsError::NotFound) => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(attr) = found {
        let is_same = |time: Option<SetTime>, has: Timestamp| time == Some(SetTime::To(has));
        let is_again =
            mode == 2 && is_same(set.atime, attr.atime) && is_same(set.mtime, attr.mtime);
        if attr.kind != FileType::Regular || (mode != 0 && !is_again) {
            return Err(Status::EXISTS.into());
        }
        if mode == 0 && set.size.is_some() {
            // On an existing file only the size is set.
            let size = SetAttr { size: set.size, ..SetAttr::default() };
            let size = permitted(request, &attr, size)?;
            request.changes()?;
            let call = || request.vfs().setattr(request.caller(), attr.ino, size);
            request.service.settled(call)?;
        }
        return made(
            request,
            dir,
            &request.service.settled(|| request.vfs().lookup(dir.ino, name))?,
        );
    }
    request.require_change(dir.ino)?;
    let flags = OpenFlags { read: true, write: true, exclusive: mode != 0, ..OpenFlags::default() };
    let perm = set.perm.take().unwrap_or(0o666);
    let (caller, vfs) = (request.caller(), request.vfs());
    let (entry, opened) = request.on(dir, |ino| vfs.create(caller, ino, name, perm, flags))?;
    request.service.opened.keep(vfs, entry.attr.ino, opened.handle, true);
    let entry = with_attributes(request, entry, set)?;
    made(request, dir, &entry)
}

pub(super) fn mkdir(request: &Request<'_>, dir: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let (name, set) = (new_name(reader)?, read_attributes(reader)?);
    request.require_change(dir.ino)?;
    let perm = set.perm.unwrap_or(0o777);
    let entry = request.on(dir, |ino| request.vfs().mkdir(request.caller(), ino, name, perm))?;
    let entry = with_attributes(request, entry, SetAttr { size: None, ..set })?;
    made(request, dir, &entry)
}

pub(super) fn symlink(request: &Request<'_>, dir: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let (name, set) = (new_name(reader)?, read_attributes(reader)?);
    let target = reader.opaque(TARGET_BYTES_MAX)?;
    request.require_change(dir.ino)?;
    let caller = request.caller();
    let entry = request.on(dir, |ino| request.vfs().symlink(caller, ino, name, target))?;
    let entry = with_attributes(request, entry, SetAttr { size: None, ..set })?;
    made(request, dir, &entry)
}

pub(super) fn mknod(request: &Request<'_>, dir: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let name = new_name(reader)?;
    let kind = match reader.u32()? {
        3 => FileType::BlockDevice,
        4 => FileType::CharDevice,
        6 => FileType::Socket,
        7 => FileType::Fifo,
        _ => return Err(Status::BAD_TYPE.into()),
    };
    let set = read_attributes(reader)?;
    let is_device = matches!(kind, FileType::BlockDevice | FileType::CharDevice);
    let device = match is_device {
        true => rustix::fs::makedev(reader.u32()?, reader.u32()?),
        false => 0,
    };
    request.require_change(dir.ino)?;
    if is_device && !request.is_root() {
        return Err(Status::NOT_PERMITTED.into());
    }
    let mode = kind.mode_bits() | set.perm.unwrap_or(0o666);
    let device = u32::try_from(device).map_err(|_| Status::INVALID)?;
    let caller = request.caller();
    let entry = request.on(dir, |ino| request.vfs().mknod(caller, ino, name, mode, device))?;
    let entry = with_attributes(request, entry, SetAttr { size: None, ..set })?;
    made(request, dir, &entry)
}

/// Answers a change of one directory.
fn changed(request: &Request<'_>, dir: &FileHandle) -> Answer {
    request.make_durable(dir.ino)?;
    let mut writer = Writer::new();
    put_change(&mut writer, request.service.file_system, after(request, dir).as_ref());
    Ok(writer)
}

pub(super) fn remove(request: &Request<'_>, dir: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let name = old_name(reader)?;
    let victim = going(request, dir, name)?;
    if victim.kind == FileType::Directory {
        return Err(Status::IS_DIRECTORY.into());
    }
    request.on(dir, |ino| request.vfs().unlink(ino, name))?;
    changed(request, dir)
}

pub(super) fn rmdir(request: &Request<'_>, dir: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let name = match name(reader)? {
        b"." => return Err(Status::INVALID.into()),
        b".." => return Err(Status::EXISTS.into()),
        name => FileName::new(name).map_err(FsError::from)?,
    };
    going(request, dir, name)?;
    request.on(dir, |ino| request.vfs().rmdir(ino, name))?;
    changed(request, dir)
}

/// Returns the attributes of what has a name that the caller may remove.
fn going(request: &Request<'_>, dir: &FileHandle, name: FileName<'_>) -> Result<Attr, Failure> {
    let attr = request.attr(dir)?;
    if attr.kind != FileType::Directory {
        return Err(Status::NOT_DIRECTORY.into());
    }
    request.require_change(dir.ino)?;
    let victim = request.peek(dir.ino, name)?;
    request.require_removal(&attr, &victim)?;
    Ok(victim)
}

pub(super) fn rename(request: &Request<'_>, from: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let name = old_name(reader)?;
    let to = request.other_handle(reader)?;
    let new_name = new_name(reader)?;
    let moved = going(request, from, name)?;
    let target = request.attr(&to)?;
    if target.kind != FileType::Directory {
        return Err(Status::NOT_DIRECTORY.into());
    }
    request.require_change(to.ino)?;
    match request.peek(to.ino, new_name) {
        Ok(replaced) => request.require_removal(&target, &replaced)?,
        Err(FsError::NotFound) => {}
        Err(error) => return Err(error.into()),
    }
    if moved.kind == FileType::Directory && from.ino != to.ino {
        // The entry `..` of the moved directory changes.
        request.require(moved.ino, AccessMode { write: true, ..AccessMode::default() })?;
    }
    let vfs = request.vfs();
    request.on(from, |ino| vfs.rename(ino, name, to.ino, new_name, RenameMode::Replace))?;
    request.make_durable(from.ino)?;
    request.make_durable(to.ino)?;
    let mut writer = Writer::new();
    for dir in [from, &to] {
        put_change(&mut writer, request.service.file_system, after(request, dir).as_ref());
    }
    Ok(writer)
}

pub(super) fn link(request: &Request<'_>, file: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let dir = request.other_handle(reader)?;
    let name = new_name(reader)?;
    let attr = request.attr(file)?;
    if attr.kind == FileType::Directory {
        return Err(Status::NOT_PERMITTED.into());
    }
    if request.attr(&dir)?.kind != FileType::Directory {
        return Err(Status::NOT_DIRECTORY.into());
    }
    request.require_change(dir.ino)?;
    let entry = request.on(file, |ino| request.vfs().link(ino, dir.ino, name))?;
    request.found(dir.ino, &entry);
    request.make_durable(dir.ino)?;
    let mut writer = Writer::new();
    put_attr_after(&mut writer, request.service.file_system, Some(&entry.attr));
    put_change(&mut writer, request.service.file_system, after(request, &dir).as_ref());
    Ok(writer)
}
