//! Moving a file out of the store when it grows beyond the threshold. It happens once in a file's life,
//! and at no moment are its bytes in no place:
//!
//! 1. Batch 1 writes a pending row `ObjectMaking`.
//! 2. The object file is made and the bytes are copied into it.
//! 3. The object is claimed (synced before batch 2 is durable).
//! 4. Batch 2 makes the row say `Object`, removes the chunks and the pending row.
//!
//! Storage that loses its power while the machine goes on may keep batch 2 and lose the object, and where the log has no gap nothing
//! tells. So an object whose bytes a sync may have made durable as rows is synced before batch 2 ([`VarveFs::may_be_durable`]).
//!
//! A crash before batch 2 leaves the file as it was and a pending row, by which the next mount removes the
//! object. A power cut may take batch 1 but leave the object file's name; fsck reports that as room
//! wasted, and the object is emptied if the file grows again.
//!
//! Source: TableFS 4.2.1 (files larger than T are stored apart).

use varve_namespace::Changes;
use varve_schema::{CHUNK_BYTES, Content, Inode, Pending};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::fs::VarveFs;
use crate::held::Held;

impl VarveFs {
    /// Moves the held file into an object. Commits; afterwards the held inode says `Object`.
    pub(crate) fn migrate(&self, held: &mut Held<'_>) -> FsResult<()> {
        let ino = held.inode.ino;
        let mut first = Changes::new();
        let orphan = held.inode.nlink == 0;
        let making = if orphan { Pending::OrphanObjectMaking } else { Pending::ObjectMaking };
        first.put_pending(ino, making);
        self.commit(&mut first)?;
        let before = held.inode.clone();
        let moved = self.move_to_object(held);
        if moved.is_err() {
            held.inode = before;
            let removed = self.objects.remove_begun(ino).and_then(|()| {
                let mut undo = Changes::new();
                undo.reclaims_space = true;
                made(&mut undo, &held.inode);
                self.commit(&mut undo)
            });
            if let Err(error) = removed {
                log::warn!("an object that was begun stays until the next mount: {error}");
            }
        }
        moved
    }

    fn move_to_object(&self, held: &mut Held<'_>) -> FsResult<()> {
        let ino = held.inode.ino;
        let fail = |error| self.object_error("write", ino, error);
        let object = self.objects.create(ino)?;
        let mut len = 0;
        match &held.inode.content {
            Content::Inline(bytes) => {
                object.write_all_at(bytes, 0).map_err(fail)?;
                len = bytes.len() as u64;
            }
            Content::Chunks => {
                for index in 0..held.inode.size.div_ceil(CHUNK_BYTES as u64) {
                    if let Some(chunk) = self.chunk(ino, index)? {
                        let from = index * CHUNK_BYTES as u64;
                        object.write_all_at(&chunk, from).map_err(fail)?;
                        len = from + chunk.len() as u64;
                    }
                }
            }
            Content::Shared(borrowed) => {
                self.copy_lent(&held.inode, *borrowed, object.as_ref())?;
                len = held.inode.size;
            }
            _ => {}
        }
        // The end may be a hole.
        if len != held.inode.size {
            object.set_len(held.inode.size).map_err(fail)?;
        }
        self.stamp_object(ino, object.as_ref(), held.inode.times.mtime)?;
        // What a clone reads from its original may be of any length, and is copied anew.
        let is_shared = matches!(held.inode.content, Content::Shared(_));
        if len > 0 && !is_shared && self.may_be_durable(ino) {
            self.objects.sync_with_name(ino, object.as_ref())?;
        }
        let mut second = Changes::new();
        second.release_source(&held.inode);
        if let Content::Chunks = held.inode.content {
            second.delete_chunks(ino, 0, held.inode.size);
        }
        let node = self.session.inodes.node(ino);
        let dirty = node.as_ref().is_some_and(|node| node.state().writers > 0);
        let blocks = if dirty { 0 } else { object.stat().map_err(fail)?.allocated.div_ceil(512) };
        held.inode.content = Content::Object { dirty, blocks };
        made(&mut second, &held.inode);
        second.depends_on_external = true;
        self.objects.claim(ino, object.clone());
        self.stage(&mut second, held)?;
        self.commit(&mut second)?;
        if let Some(node) = node {
            self.objects.descriptors().keep(&node, &self.objects.wrap(ino, object));
            node.state().dirty_is_durable = dirty;
        }
        Ok(())
    }

    /// Whether a sync may have made bytes of the file durable as rows: one that began after a program opened the file when it
    /// was empty, or any sync if no program did.
    fn may_be_durable(&self, ino: InodeId) -> bool {
        let Some(begun) = self.store.syncs_begun() else { return false };
        let began = self.session.inodes.node(ino).and_then(|node| {
            let state = node.state();
            state.began_in.and(state.began_after)
        });
        began != Some(begun)
    }
}

/// Notes that no object is being made any more.
fn made(changes: &mut Changes, inode: &Inode) {
    if inode.nlink == 0 {
        changes.put_pending(inode.ino, Pending::Orphan);
    } else {
        changes.delete_pending(inode.ino);
    }
}
