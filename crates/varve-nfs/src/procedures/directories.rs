//! Procedures that list directories: READDIR and READDIRPLUS.

use varve_types::InodeId;
use varve_vfs::{AccessMode, FileType};

use super::Answer;
use crate::handle::FileHandle;
use crate::service::{Failure, Request, put_attr_after};
use crate::status::Status;
use crate::xdr::{Reader, Writer};

/// The most bytes of a listing.
const LISTING_BYTES_MAX: usize = 1 << 20;
/// The length of the end of a listing: no further entry, and whether the listing is complete.
const END_BYTES: usize = 8;

/// The arguments of a listing.
struct Wanted {
    cookie: u64,
    /// The most bytes of names, numbers and cookies.
    names_max: usize,
    /// The most bytes of the result.
    bytes_max: usize,
    with_attributes: bool,
}

pub(super) fn readdir(request: &Request<'_>, dir: &FileHandle, reader: &mut Reader<'_>) -> Answer {
    let cookie = reader.u64()?;
    reader.fixed(8)?;
    let bytes_max = reader.u32()? as usize;
    list(request, dir, Wanted { cookie, names_max: bytes_max, bytes_max, with_attributes: false })
}

pub(super) fn readdirplus(
    request: &Request<'_>,
    dir: &FileHandle,
    reader: &mut Reader<'_>,
) -> Answer {
    let cookie = reader.u64()?;
    reader.fixed(8)?;
    let (names_max, bytes_max) = (reader.u32()? as usize, reader.u32()? as usize);
    list(request, dir, Wanted { cookie, names_max, bytes_max, with_attributes: true })
}

fn list(request: &Request<'_>, dir: &FileHandle, wanted: Wanted) -> Answer {
    let attr = request.attr(dir)?;
    if attr.kind != FileType::Directory {
        return Err(Status::NOT_DIRECTORY.into());
    }
    request.require(dir.ino, AccessMode { read: true, ..AccessMode::default() })?;
    let (service, with_attributes) = (request.service, wanted.with_attributes);
    let bytes_max = wanted.bytes_max.min(LISTING_BYTES_MAX);
    let listed = || {
        let mut writer = Writer::new();
        put_attr_after(&mut writer, service.file_system, Some(&attr));
        // Cookies stay valid, so listings need no verifier.
        writer.u64(0);
        let (begin, mut names, mut is_end) = (writer.len(), 0, true);
        let mut looked_up: Vec<InodeId> = Vec::new();
        let outcome = service.vfs.readdir(dir.ino, wanted.cookie, with_attributes, &mut |entry| {
            let before = writer.len();
            writer.bool(true);
            writer.u64(entry.ino.get());
            writer.opaque(entry.name);
            writer.u64(entry.cookie);
            names += writer.len() - before;
            if with_attributes {
                put_attr_after(&mut writer, service.file_system, entry.attr.as_ref());
                writer.bool(entry.attr.is_some());
                if entry.attr.is_some() {
                    writer.opaque(&request.child(dir.ino, entry.ino).encode());
                }
            }
            // The first entry is limited only by the size of the whole result.
            let is_first = before == begin;
            if writer.len() + END_BYTES > bytes_max || (names > wanted.names_max && !is_first) {
                writer.truncate(before);
                is_end = false;
                return false;
            }
            looked_up.extend(entry.attr.map(|_| entry.ino));
            true
        });
        looked_up.into_iter().for_each(|ino| service.looked_up.note(&*service.vfs, ino));
        outcome.map(|()| (writer, begin, is_end))
    };
    let (mut writer, begin, is_end) = service.settled(listed)?;
    if writer.len() == begin && !is_end {
        return Err(Failure::from(Status::TOO_SMALL));
    }
    writer.bool(false);
    writer.bool(is_end);
    Ok(writer)
}
