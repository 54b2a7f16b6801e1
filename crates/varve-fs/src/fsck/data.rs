//! What belongs to an inode, against what its row says: chunks, extended attributes, the object file.

use bytes::Bytes;
use varve_namespace::xattr::check_name;
use varve_schema::key::DataRow;
use varve_schema::{CHUNK_BYTES, DATA, Pending, RowKey, XattrRow, is_lost_chunk};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::fact::{ContentKind, Seen};
use super::inodes::{CountedInode, PHASE, Row};
use super::names::printable;
use super::{At, Check, Finding};
use crate::epoch::Epoch;
use crate::ids::is_inode_id;
use crate::objects::Staged;
use crate::superblock::view_dir;

impl Check<'_> {
    /// Checks the chunks and the extended attributes of an inode.
    pub(super) fn check_rows(
        &mut self,
        known: &CountedInode,
        next: &mut dyn FnMut() -> FsResult<Option<Row>>,
    ) -> FsResult<()> {
        let ino = known.ino.get();
        let (mut unowned, mut has_xattrs, mut chunks) = (0, false, 0);
        while let Some(Row { key, value, .. }) = next()? {
            self.step(PHASE);
            match RowKey::from_bytes(&key).filter(|_| is_inode_id(known.ino)) {
                None => self.unknown(DATA, key)?,
                Some(row_key) => match row_key.data_kind() {
                    DataRow::Chunk(_, index) => {
                        self.report.chunks += 1;
                        self.absent_chunks(known, chunks, index)?;
                        chunks = index.saturating_add(1);
                        match known.seen() {
                            None => unowned += 1,
                            Some(seen) => self.check_chunk(known, index, &value, seen)?,
                        }
                    }
                    DataRow::Xattr(_) => {
                        has_xattrs |= self.check_xattr(known.ino, row_key, key, &value)?;
                    }
                },
            }
        }
        self.doubt_data(known, chunks)?;
        self.absent_chunks(known, chunks, u64::MAX)?;
        if unowned > 0 {
            self.found(Finding::DataWithoutInode { ino, chunks: unowned }, At::Own)?;
        }
        match known.seen() {
            Some(seen) if seen.has_xattrs && !has_xattrs => {
                self.found(Finding::MissingXattr { ino }, known.at())
            }
            seen if has_xattrs && !seen.is_some_and(|seen| seen.has_xattrs) => {
                self.found(Finding::StrayXattr { ino }, known.at())
            }
            _ => Ok(()),
        }
    }

    fn check_chunk(
        &mut self,
        known: &CountedInode,
        index: u64,
        value: &Bytes,
        seen: Seen,
    ) -> FsResult<()> {
        let (ino, bytes) = (known.ino.get(), value.len() as u64);
        let start = index.saturating_mul(CHUNK_BYTES as u64);
        if seen.place == ContentKind::Chunks && start < seen.size && is_lost_chunk(value) {
            return self.lost_chunk(known, index, seen.size);
        }
        let end = start.saturating_add(bytes);
        let finding = if seen.place != ContentKind::Chunks {
            Finding::StrayChunk { ino, index }
        } else if value.len() > CHUNK_BYTES {
            Finding::OversizedChunk { ino, index, bytes }
        } else if end > seen.size {
            Finding::ChunkBeyondSize { ino, index, size: seen.size }
        } else {
            return Ok(());
        };
        self.found(finding, At::Own)
    }

    /// Checks one row of extended attributes; false if it cannot be read.
    fn check_xattr(
        &mut self,
        ino: InodeId,
        key: RowKey,
        raw: Bytes,
        value: &Bytes,
    ) -> FsResult<bool> {
        let row = match XattrRow::decode(value) {
            Ok(row) => row,
            Err(error) => {
                self.unreadable(DATA, raw, &error)?;
                return Ok(false);
            }
        };
        let number = ino.get();
        for attr in &row.attrs {
            let name = || printable(&attr.name);
            let finding = if check_name(&attr.name).is_err() {
                Finding::BadXattrName { ino: number, name: name() }
            } else if RowKey::xattr(ino, self.volume.hasher.xattr(&attr.name)) != key {
                Finding::MisplacedXattr { ino: number, name: name() }
            } else {
                continue;
            };
            // All of the row is mended at once.
            self.found(finding, At::Row(raw))?;
            break;
        }
        Ok(true)
    }

    pub(super) fn check_object(&mut self, known: &CountedInode, is_there: bool) -> FsResult<()> {
        let ino = known.ino.get();
        if let Some(Pending::ObjectInstall { view }) = known.pending {
            match self
                .volume
                .objects
                .staged(known.ino, &view_dir(&self.volume.dir, Epoch::of(view)))?
            {
                Staged::Nothing => {}
                Staged::Damaged(detail) => {
                    self.report.objects += u64::from(is_there);
                    return self.found(Finding::DamagedInstall { ino, detail }, known.at());
                }
                Staged::Ready(_) => {
                    // The next mount makes it what its row says.
                    self.report.objects += u64::from(is_there);
                    return Ok(());
                }
            }
        }
        let claim = known.seen().filter(|seen| seen.place.is_object());
        if is_there {
            self.step(PHASE);
            self.report.objects += 1;
        }
        let finding = match claim {
            Some(_) if !is_there => Finding::MissingObject { ino },
            Some(seen) if seen.place == ContentKind::Object => {
                // A repair may have moved it since it was listed.
                let Some(object) = self.volume.objects.find(known.ino)? else { return Ok(()) };
                let (recorded, found) = (seen.size, object.len);
                match found.cmp(&recorded) {
                    std::cmp::Ordering::Less => Finding::ShortObject { ino, recorded, found },
                    std::cmp::Ordering::Greater => Finding::LongObject { ino, recorded, found },
                    std::cmp::Ordering::Equal => return Ok(()),
                }
            }
            Some(_) if known.is_unsettled() => Finding::UnsettledObject { ino },
            Some(_) => return Ok(()),
            // Work that is pending removes it.
            None if !is_there || known.pending.is_some_and(removes_object) => return Ok(()),
            None if known.seen().is_some() => Finding::UnclaimedObject { ino },
            None => Finding::ObjectWithoutRow { ino },
        };
        self.found(finding, known.at())
    }
}

/// Whether pending work removes the object.
fn removes_object(pending: Pending) -> bool {
    match pending {
        Pending::ObjectMaking | Pending::OrphanObjectMaking | Pending::ObjectDelete => true,
        Pending::Orphan | Pending::ObjectDirty { .. } | Pending::ObjectInstall { .. } => false,
    }
}
