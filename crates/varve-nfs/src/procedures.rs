//! The procedures of NFS version 3 (RFC 1813, 3.3).
//!
//! 1. [`call`] finds the procedure by its number.
//! 2. The procedure decodes its arguments, checks the caller's rights, and calls the file system.
//! 3. It encodes the result, or a status and empty attributes.
//!
//! Invariant: a procedure that changes something ([`is_once`]) is never executed twice for one call (`replies`).

mod data;
mod directories;
mod names;

use std::net::IpAddr;

use varve_types::Timestamp;
use varve_vfs::{AccessMode, Attr, FileType, SetAttr, SetTime};

use crate::handle::FileHandle;
use crate::rpc::Credentials;
use crate::service::{Failure, Request, Service, put_attr, put_attr_after, put_change};
use crate::status::Status;
use crate::xdr::{Garbage, Reader, Writer};

/// The program's number.
pub(crate) const PROGRAM: u32 = 100_003;
/// Its version.
pub(crate) const VERSION: u32 = 3;

/// The most bytes that a client may read or write in one call.
pub(crate) const DATA_BYTES_MAX: u32 = 1 << 20;

/// The result of a procedure.
type Answer = Result<Writer, Failure>;
type Procedure = fn(&Request<'_>, &FileHandle, &mut Reader<'_>) -> Answer;

/// A procedure, the number of zero words after a status of failure (for the missing attributes), and whether it
/// changes something. A repeated change would fail or undo later changes.
struct Entry(Procedure, u32, bool);

/// The procedures by number; a procedure without an effect is missing.
const PROCEDURES: [Option<Entry>; 22] = [
    None,
    Some(Entry(getattr, 0, false)),
    Some(Entry(setattr, 2, true)),
    Some(Entry(names::lookup, 1, false)),
    Some(Entry(access, 1, false)),
    Some(Entry(data::readlink, 1, false)),
    Some(Entry(data::read, 1, false)),
    Some(Entry(data::write, 2, true)),
    Some(Entry(names::create, 2, true)),
    Some(Entry(names::mkdir, 2, true)),
    Some(Entry(names::symlink, 2, true)),
    Some(Entry(names::mknod, 2, true)),
    Some(Entry(names::remove, 2, true)),
    Some(Entry(names::rmdir, 2, true)),
    Some(Entry(names::rename, 4, true)),
    Some(Entry(names::link, 3, true)),
    Some(Entry(directories::readdir, 1, false)),
    Some(Entry(directories::readdirplus, 1, false)),
    Some(Entry(fsstat, 1, false)),
    Some(Entry(fsinfo, 1, false)),
    Some(Entry(pathconf, 1, false)),
    Some(Entry(data::commit, 2, false)),
];

/// Returns whether the procedure must not be executed twice for one call.
pub(crate) fn is_once(procedure: u32) -> bool {
    let entry = PROCEDURES.get(procedure as usize).and_then(Option::as_ref);
    entry.is_some_and(|Entry(_, _, is_once)| *is_once)
}

/// The outcome of a call.
pub(crate) enum Outcome {
    /// The result, and whether the client has to repeat the call.
    Result { writer: Writer, is_later: bool },
    /// No procedure has this number.
    NoProcedure,
    /// The arguments cannot be decoded.
    Garbage,
}

/// Serves a call of a procedure.
pub(crate) fn call(
    service: &Service,
    procedure: u32,
    (address, credentials): (IpAddr, &Credentials),
    arguments: &mut Reader<'_>,
) -> Outcome {
    let (function, zeros) = match PROCEDURES.get(procedure as usize) {
        None => return Outcome::NoProcedure,
        Some(None) => return Outcome::Result { writer: Writer::new(), is_later: false },
        Some(Some(Entry(function, zeros, _))) => (function, *zeros),
    };
    let answered = Service::handle(arguments).and_then(|handle| {
        let request = service.request(&handle, address, credentials)?;
        function(&request, &handle, arguments)
    });
    let mut writer = Writer::new();
    let status = match answered {
        Err(Failure::Garbage) => return Outcome::Garbage,
        Err(Failure::Status(status)) => {
            writer.u32(status.0);
            (0..zeros).for_each(|_| writer.u32(0));
            status
        }
        Ok(result) => {
            writer.u32(Status::OK.0);
            writer.append(&result);
            Status::OK
        }
    };
    Outcome::Result { writer, is_later: status == Status::JUKEBOX }
}

/// Decodes the attributes that a call sets (`sattr3`).
pub(crate) fn read_attributes(reader: &mut Reader<'_>) -> Result<SetAttr, Failure> {
    let perm = reader.option(Reader::u32)?.map(|mode| mode & 0o7777);
    let (uid, gid) = (reader.option(Reader::u32)?, reader.option(Reader::u32)?);
    let size = reader.option(Reader::u64)?;
    let (atime, mtime) = (read_time(reader)?, read_time(reader)?);
    Ok(SetAttr { perm, uid, gid, size, atime, mtime, kill_set_id: false, kill_set_gid: false })
}

fn read_time(reader: &mut Reader<'_>) -> Result<Option<SetTime>, Garbage> {
    match reader.u32()? {
        0 => Ok(None),
        1 => Ok(Some(SetTime::Now)),
        2 => {
            let time = Timestamp::new(reader.u32()?.into(), reader.u32()?);
            Ok(Some(SetTime::To(time.ok_or(Garbage("no time"))?)))
        }
        _ => Err(Garbage("no way to set a time")),
    }
}

fn getattr(request: &Request<'_>, handle: &FileHandle, _: &mut Reader<'_>) -> Answer {
    let attr = request.attr(handle)?;
    let mut writer = Writer::new();
    put_attr(&mut writer, request.service.file_system, &attr);
    Ok(writer)
}

fn setattr(request: &Request<'_>, handle: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let set = read_attributes(reader)?;
    let guard = reader.option(|reader| Ok((reader.u32()?, reader.u32()?)))?;
    request.changes()?;
    let attr = request.attr(handle)?;
    if let Some(guard) = guard
        && guard != (crate::service::seconds(attr.ctime.secs()), attr.ctime.nanos())
    {
        return Err(Status::NOT_SYNC.into());
    }
    let set = permitted(request, &attr, set)?;
    let attr = request.on(handle, |ino| request.vfs().setattr(request.caller(), ino, set))?;
    if !request.terms.is_async {
        request.vfs().sync()?;
    }
    let mut writer = Writer::new();
    put_change(&mut writer, request.service.file_system, Some(&attr));
    Ok(writer)
}

/// Checks that the caller may set these attributes (chmod(2), chown(2), truncate(2), utimensat(2)), and adds the
/// changes that follow from them.
pub(crate) fn permitted(
    request: &Request<'_>,
    attr: &Attr,
    mut set: SetAttr,
) -> Result<SetAttr, Failure> {
    let (is_root, is_owner) = (request.is_root(), request.user.uid == attr.uid);
    let not_permitted = || Failure::from(Status::NOT_PERMITTED);
    if is_root {
        return Ok(set);
    }
    if set.size.is_some() {
        if attr.kind == FileType::Directory {
            return Err(Status::IS_DIRECTORY.into());
        }
        request.require_write(attr)?;
        set.kill_set_id = true;
        set.kill_set_gid = !request.is_in(attr.gid);
    }
    let gives_away = set.uid.is_some_and(|uid| uid != attr.uid);
    let foreign_group = set.gid.is_some_and(|gid| gid != attr.gid && !request.is_in(gid));
    if gives_away || foreign_group || (!is_owner && (set.perm.or(set.gid).or(set.uid)).is_some()) {
        return Err(not_permitted());
    }
    let sets_time = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
    if !is_owner && (sets_time(set.atime) || sets_time(set.mtime)) {
        return Err(not_permitted());
    }
    if !is_owner && (set.atime.or(set.mtime)).is_some() {
        request.require_write(attr)?;
    }
    if let Some(perm) = &mut set.perm
        && attr.kind != FileType::Directory
        && !request.is_in(set.gid.unwrap_or(attr.gid))
    {
        *perm &= !0o2000;
    }
    Ok(set)
}

fn access(request: &Request<'_>, handle: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    const READ: u32 = 1;
    const LOOKUP: u32 = 2;
    const MODIFY: u32 = 4;
    const EXTEND: u32 = 8;
    const DELETE: u32 = 16;
    const EXECUTE: u32 = 32;
    let wanted = reader.u32()?;
    let attr = request.attr(handle)?;
    let is_dir = attr.kind == FileType::Directory;
    let (mut granted, none) = (0, AccessMode::default());
    let search = if is_dir { LOOKUP } else { EXECUTE };
    let change = if is_dir { MODIFY | EXTEND | DELETE } else { MODIFY | EXTEND };
    for (bits, mode) in [
        (READ, AccessMode { read: true, ..none }),
        (search, AccessMode { execute: true, ..none }),
        (change, AccessMode { write: true, ..none }),
    ] {
        let is_refused = mode.write && request.terms.read_only;
        if wanted & bits != 0 && !is_refused && request.may(attr.ino, mode)? {
            granted |= wanted & bits;
        }
    }
    let mut writer = Writer::new();
    put_attr_after(&mut writer, request.service.file_system, Some(&attr));
    writer.u32(granted);
    Ok(writer)
}

fn fsstat(request: &Request<'_>, handle: &FileHandle, _: &mut Reader<'_>) -> Answer {
    let attr = request.attr(handle)?;
    let room = request.vfs().statfs()?;
    let mut writer = Writer::new();
    put_attr_after(&mut writer, request.service.file_system, Some(&attr));
    for blocks in [room.blocks, room.blocks_free, room.blocks_available] {
        writer.u64(blocks.saturating_mul(room.block_bytes.into()));
    }
    [room.files, room.files_free, room.files_free].iter().for_each(|files| writer.u64(*files));
    // The free space may change at any moment.
    writer.u32(0);
    Ok(writer)
}

fn fsinfo(request: &Request<'_>, handle: &FileHandle, _: &mut Reader<'_>) -> Answer {
    const HARD_LINKS: u32 = 1;
    const SYMBOLIC_LINKS: u32 = 2;
    const HOMOGENEOUS: u32 = 8;
    const SETS_TIMES: u32 = 16;
    const LISTING_BYTES: u32 = 64 << 10;
    let attr = request.attr(handle)?;
    let mut writer = Writer::new();
    put_attr_after(&mut writer, request.service.file_system, Some(&attr));
    // The largest and the best size of a read, and its unit; then the same for writes.
    let transfer = [DATA_BYTES_MAX, DATA_BYTES_MAX, 4096];
    (0..2).for_each(|_| writer.u32s(&transfer));
    writer.u32(LISTING_BYTES);
    writer.u64(varve_types::limits::FILE_BYTES_MAX);
    // Times have nanoseconds.
    writer.u32s(&[0, 1]);
    writer.u32(HARD_LINKS | SYMBOLIC_LINKS | HOMOGENEOUS | SETS_TIMES);
    Ok(writer)
}

fn pathconf(request: &Request<'_>, handle: &FileHandle, _: &mut Reader<'_>) -> Answer {
    let attr = request.attr(handle)?;
    let room = request.vfs().statfs()?;
    let mut writer = Writer::new();
    put_attr_after(&mut writer, request.service.file_system, Some(&attr));
    writer.u32(varve_types::limits::LINKS_MAX);
    writer.u32(room.name_bytes_max);
    // The server refuses long names, only root may give files away, and names are bytes.
    writer.u32s(&[1, 1, 0, 1]);
    Ok(writer)
}
