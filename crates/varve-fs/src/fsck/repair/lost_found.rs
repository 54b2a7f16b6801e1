//! `/lost+found`: where what has no name gets one, `#` and its inode id.

use varve_schema::{Body, Content, DirInfo, FileKind, Inode, Times};
use varve_types::limits::NAME_BYTES_MAX;
use varve_types::{FileFlags, InodeId};
use varve_vfs::FsResult;

use super::Repair;
use super::edit::Edit;

/// Its name in the root directory.
const LOST_FOUND: &str = "lost+found";

impl Repair<'_> {
    /// An inode that only its owner may use, whose the store is.
    pub(super) fn blank(&self, ino: InodeId, content: Content) -> Inode {
        let is_dir = matches!(content, Content::Directory(_));
        let (uid, gid) = self.owner;
        Inode {
            ino,
            kind: if is_dir { FileKind::Directory } else { FileKind::Regular },
            perm: if is_dir { 0o700 } else { 0o600 },
            nlink: if is_dir { 2 } else { 1 },
            uid,
            gid,
            rdev: 0,
            size: 0,
            times: Times::all(self.volume.env.now()),
            has_xattrs: false,
            flags: FileFlags::default(),
            home: None,
            content,
        }
    }

    /// Whose that is, for people.
    pub(super) fn owner_name(&self) -> String {
        match self.owner.0 {
            0 => "root".to_owned(),
            uid => format!("user {uid}"),
        }
    }

    /// A directory without entries and without a name.
    pub(super) fn blank_directory(&self, ino: InodeId) -> Inode {
        self.blank(ino, Content::Directory(DirInfo::new(InodeId::ROOT, None)))
    }

    /// The directory `/lost+found`, made if it does not exist; with a number after it if that is somebody else's, or open to
    /// others: what is found may have been where they had no way to. `None` if there is no root to make it in yet.
    pub(super) fn lost_found(&mut self) -> FsResult<Option<InodeId>> {
        if let Some((dir, _)) = &self.lost_found {
            return Ok(Some(*dir));
        }
        let volume = self.volume;
        for n in 0.. {
            let name = if n == 0 { LOST_FOUND.to_owned() } else { format!("{LOST_FOUND}.{n}") };
            let mut edit = Edit::new(volume);
            if edit.directory(InodeId::ROOT)?.is_none() {
                return Ok(None);
            }
            let key =
                varve_schema::RowKey::entry(InodeId::ROOT, volume.hasher.entry(name.as_bytes()));
            let there = edit.row(key)?.find(name.as_bytes()).map(|named| named.body.clone());
            match there {
                Some(body) => {
                    let dir = edit.directory(body.ino())?.map(|dir| (dir.uid, dir.perm & 0o077));
                    if dir == Some((self.owner.0, 0)) {
                        self.lost_found = Some((body.ino(), format!("/{name}")));
                        break;
                    }
                }
                None => {
                    let ino = self.new_id()?;
                    edit.put_inode(self.blank_directory(ino));
                    let body = Body::Reference { ino, kind: FileKind::Directory };
                    if edit.add_name(InodeId::ROOT, name.as_bytes(), body)?.is_some() {
                        edit.commit()?;
                        self.lost_found = Some((ino, format!("/{name}")));
                        break;
                    }
                }
            }
        }
        Ok(self.lost_found.as_ref().map(|(dir, _)| *dir))
    }

    /// Its path.
    pub(super) fn lost_found_path(&self) -> &str {
        self.lost_found.as_ref().map_or("", |(_, path)| path)
    }

    /// Adds to `edit` a name for `body` in `/lost+found`, which is `dir`, and says which.
    ///
    /// REQUIRES: `edit` began after [`Repair::lost_found`] was called, which changes the root by itself.
    pub(super) fn name_lost(
        &self,
        edit: &mut Edit<'_>,
        dir: InodeId,
        body: Body,
    ) -> FsResult<String> {
        let wanted = format!("#{}", body.ino());
        let name = self.name_variant(edit, dir, wanted.as_bytes(), body)?;
        Ok(format!("{}/{}", self.lost_found_path(), crate::fsck::names::printable(&name)))
    }

    /// Adds to `edit` a name for `body` in `dir`: `wanted`, or if that is taken, with a number after it.
    pub(super) fn name_variant(
        &self,
        edit: &mut Edit<'_>,
        dir: InodeId,
        wanted: &[u8],
        body: Body,
    ) -> FsResult<Vec<u8>> {
        for n in 0_u64.. {
            let tail = if n == 0 { String::new() } else { format!(".{n}") };
            let mut name = wanted[..wanted.len().min(NAME_BYTES_MAX - tail.len())].to_vec();
            name.extend_from_slice(tail.as_bytes());
            if edit.add_name(dir, &name, body.clone())?.is_some() {
                return Ok(name);
            }
        }
        Ok(wanted.to_vec())
    }
}
