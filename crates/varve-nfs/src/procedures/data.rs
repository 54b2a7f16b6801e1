//! Procedures about bytes: READ, WRITE, COMMIT and READLINK.

use varve_vfs::{Attr, FileType, SetAttr, SetIdTaken};

use super::{Answer, DATA_BYTES_MAX};
use crate::handle::FileHandle;
use crate::service::{Failure, Request, put_attr_after, put_change};
use crate::status::Status;
use crate::xdr::{Reader, Writer};

/// How durable a write must be (`stable_how`).
const UNSTABLE: u32 = 0;
const DATA_SYNC: u32 = 1;
const FILE_SYNC: u32 = 2;

/// Returns the attributes of a regular file.
fn file(request: &Request<'_>, handle: &FileHandle) -> Result<Attr, Failure> {
    let attr = request.attr(handle)?;
    match attr.kind {
        FileType::Regular => Ok(attr),
        FileType::Directory => Err(Status::IS_DIRECTORY.into()),
        _ => Err(Status::INVALID.into()),
    }
}

pub(super) fn readlink(request: &Request<'_>, handle: &FileHandle, _: &mut Reader<'_>) -> Answer {
    let attr = request.attr(handle)?;
    if attr.kind != FileType::Symlink {
        return Err(Status::INVALID.into());
    }
    let target = request.on(handle, |ino| request.vfs().readlink(ino))?;
    let mut writer = Writer::new();
    put_attr_after(&mut writer, request.service.file_system, Some(&attr));
    writer.opaque(&target);
    Ok(writer)
}

pub(super) fn read(request: &Request<'_>, handle: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let (offset, count) = (reader.u64()?, reader.u32()?.min(DATA_BYTES_MAX));
    request.require_read(&file(request, handle)?)?;
    let (opened, vfs) = (&request.service.opened, request.vfs());
    let bytes = request.on(handle, |ino| {
        let open = opened.get(vfs, ino, false)?;
        vfs.read(ino, open.handle, offset, count as usize)
    })?;
    let attr = request.attr(handle)?;
    let mut writer = Writer::new();
    put_attr_after(&mut writer, request.service.file_system, Some(&attr));
    writer.u32(bytes.len() as u32);
    writer.bool(bytes.len() < count as usize || offset + bytes.len() as u64 >= attr.size);
    writer.opaque(&bytes);
    Ok(writer)
}

pub(super) fn write(request: &Request<'_>, handle: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let (offset, count, stable) = (reader.u64()?, reader.u32()?, reader.u32()?);
    let data = reader.opaque(DATA_BYTES_MAX as usize)?;
    if stable > FILE_SYNC {
        return Err(Failure::Garbage);
    }
    let data = &data[..data.len().min(count as usize)];
    let before = file(request, handle)?;
    request.require_write(&before)?;
    if offset.checked_add(data.len() as u64).is_none() {
        return Err(Status::INVALID.into());
    }
    let (opened, vfs) = (&request.service.opened, request.vfs());
    let kill_set_id = !request.is_root();
    let written = request.on(handle, |ino| {
        let open = opened.get(vfs, ino, true)?;
        let written = vfs.write(ino, open.handle, offset, data, kill_set_id)?;
        if written.set_id == SetIdTaken::AllButGroup && !request.is_in(before.gid) {
            let set = SetAttr { kill_set_gid: true, ..SetAttr::default() };
            vfs.setattr(request.caller(), ino, set)?;
        }
        if stable != UNSTABLE && !request.terms.is_async {
            vfs.fsync(ino, open.handle, stable == DATA_SYNC)?;
        }
        Ok(written)
    })?;
    let attr = request.attr(handle)?;
    let mut writer = Writer::new();
    put_change(&mut writer, request.service.file_system, Some(&attr));
    writer.u32(written.bytes as u32);
    writer.u32(stable);
    writer.fixed(&request.service.verifier);
    Ok(writer)
}

pub(super) fn commit(
    request: &Request<'_>,
    handle: &FileHandle,
    reader: &mut Reader<'_>,
) -> Answer {
    // COMMIT makes the whole file durable, whatever its range.
    reader.u64()?;
    reader.u32()?;
    request.require_write(&file(request, handle)?)?;
    let (opened, vfs) = (&request.service.opened, request.vfs());
    request.on(handle, |ino| {
        let open = opened.get(vfs, ino, true)?;
        vfs.fsync(ino, open.handle, false)
    })?;
    let attr = request.attr(handle)?;
    let mut writer = Writer::new();
    put_change(&mut writer, request.service.file_system, Some(&attr));
    writer.fixed(&request.service.verifier);
    Ok(writer)
}
