//! Mends what clones have not copied yet ([`crate::clones`]).

use varve_namespace::Changes;
use varve_schema::{CloneReference, Content, META, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::Repair;
use super::edit::Edit;
use crate::fsck::Finding;
use crate::fsck::finding::At;

impl Repair<'_> {
    pub(super) fn mend_clone(&mut self, finding: &Finding, at: &At) -> FsResult<Option<String>> {
        match (finding, at) {
            (Finding::StrayLoan { .. } | Finding::StrayTwin { .. }, At::Row(key)) => {
                self.set_row_aside(META, key)
            }
            (Finding::MissingLoan { ino, state }, at) => self.lend_again(*ino, *state, at),
            (Finding::SourceGone { ino, state }, at) => self.give_up(*ino, *state, at),
            _ => self.mend_usage(finding, at),
        }
    }

    /// A file says itself what it shares; a directory's reference is lost with its row.
    fn lend_again(&mut self, ino: u64, source: u64, at: &At) -> FsResult<Option<String>> {
        let (id, from) = (InodeId::new(ino), InodeId::new(source));
        let Some(inode) = Edit::new(self.volume).inode_at(id, at)? else { return Ok(None) };
        if !matches!(inode.content, Content::Shared(_)) {
            return self.give_up(ino, source, at);
        }
        let mut changes = Changes::new();
        changes.put_meta(RowKey::clone_reference(from, id), CloneReference::File.encode());
        self.commit(changes)?;
        Ok(Some("it has the reference that its row says".to_owned()))
    }

    /// What cannot be read from the source any more is lost.
    fn give_up(&mut self, ino: u64, source: u64, at: &At) -> FsResult<Option<String>> {
        let (id, from) = (InodeId::new(ino), InodeId::new(source));
        let mut edit = Edit::new(self.volume);
        let Some(mut inode) = edit.inode_at(id, at)? else { return Ok(None) };
        if inode.source() != Some(from) {
            return Ok(None);
        }
        let done = match &mut inode.content {
            Content::Directory(info) => {
                info.source = None;
                "the names that it had not copied are lost"
            }
            _ => {
                (inode.content, inode.size) = (Content::None, 0);
                "its bytes are lost: it is empty"
            }
        };
        edit.put_inode_at(inode, at)?;
        edit.changes.delete_meta(RowKey::clone_reference(from, id));
        edit.commit()?;
        Ok(Some(done.to_owned()))
    }
}
