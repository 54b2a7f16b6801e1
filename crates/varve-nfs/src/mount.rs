//! The MOUNT protocol, version 3 (RFC 1813, appendix I), which gives clients the handle of a path.

use std::net::IpAddr;

use varve_types::{FileName, InodeId};
use varve_vfs::{FileType, FsError, FsResult, Vfs};

use crate::export::Export;
use crate::handle::FileHandle;
use crate::rpc::Accepted;
use crate::service::Service;
use crate::xdr::{Reader, Writer};

/// The program's number.
pub(crate) const PROGRAM: u32 = 100_005;
/// Its version.
pub(crate) const VERSION: u32 = 3;

const PATH_BYTES_MAX: usize = 1024;
const AUTH_SYS: u32 = 1;

/// Statuses (`mountstat3`).
const OK: u32 = 0;
const NOT_FOUND: u32 = 2;
const IO: u32 = 5;
const ACCESS: u32 = 13;
const NOT_DIRECTORY: u32 = 20;

/// Serves a call of a procedure.
pub(crate) fn call(
    service: &Service,
    procedure: u32,
    address: IpAddr,
    arguments: &mut Reader<'_>,
) -> Result<Writer, Accepted> {
    let mut writer = Writer::new();
    match procedure {
        // NULL, UMNT, UMNTALL: the server keeps no list of mounts.
        0 | 3 | 4 => {}
        // DUMP: an empty list of mounts.
        2 => writer.bool(false),
        1 => {
            let path = arguments.opaque(PATH_BYTES_MAX).map_err(|_| Accepted::Garbage)?;
            match mount(service, address, path) {
                Ok(handle) => {
                    writer.u32(OK);
                    writer.opaque(&handle.encode());
                    writer.u32s(&[1, AUTH_SYS]);
                }
                Err(status) => writer.u32(status),
            }
        }
        5 => {
            for (export, _) in &service.exports {
                writer.bool(true);
                writer.opaque(export.shown_path().as_bytes());
                for client in export.clients() {
                    writer.bool(true);
                    writer.opaque(client.as_bytes());
                }
                writer.bool(false);
            }
            writer.bool(false);
        }
        _ => return Err(Accepted::NoProcedure),
    }
    Ok(writer)
}

/// Returns the part of `path` after the directory of an export, if the path is this directory or below it.
fn below<'a>(path: &'a str, export: &Export) -> Option<&'a str> {
    let rest = path.strip_prefix(export.path.as_str())?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

fn mount(service: &Service, address: IpAddr, path: &[u8]) -> Result<FileHandle, u32> {
    let path = std::str::from_utf8(path).map_err(|_| NOT_FOUND)?.trim_end_matches('/');
    let exports = service.exports.iter().filter_map(|(export, root)| {
        let rest = below(path, export)?;
        export.terms(address).map(|_| (rest, *root))
    });
    // The nearest export counts.
    let Some((rest, root)) = exports.min_by_key(|(rest, _)| rest.len()) else {
        log::warn!("{address} may not mount {path:?}");
        return Err(ACCESS);
    };
    let found = walk(&*service.vfs, root, rest).map_err(|error| match error {
        FsError::NotFound | FsError::Name(_) => NOT_FOUND,
        FsError::NotDirectory => NOT_DIRECTORY,
        _ => IO,
    })?;
    log::info!("{address} mounts {}", if path.is_empty() { "/" } else { path });
    Ok(FileHandle { file_system: service.file_system, export: root, ino: found, parent: None })
}

/// Looks up the directory at `path` below `dir`.
pub(crate) fn walk(vfs: &dyn Vfs, dir: InodeId, path: &str) -> FsResult<InodeId> {
    let mut at = dir;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let entry = vfs.lookup(at, FileName::new(name.as_bytes())?)?;
        vfs.forget(entry.attr.ino, 1);
        if entry.attr.kind != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        at = entry.attr.ino;
    }
    Ok(at)
}
