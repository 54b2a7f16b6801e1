//! Files that begin large, where the [predictor](varve_session::LargeFilePredictor) expects it.

use std::sync::Arc;

use varve_env::File;
use varve_schema::{Content, Inode};
use varve_session::{Became, NodeState};
use varve_types::InodeId;

use crate::descriptors::OpenNode;
use crate::fs::VarveFs;
use crate::held::Held;
use crate::options::NewFiles;

impl VarveFs {
    /// Whether new files of `dir` begin as objects. None do in views, where what is large and open stands in the way of a
    /// commit, nor where every write has to be counted.
    pub(crate) fn begins_large(&self, dir: InodeId) -> bool {
        let expected = match self.options.new_files {
            NewFiles::Auto => self.session.predictor.expects_large(dir),
            NewFiles::Small => false,
            NewFiles::Large => true,
        };
        expected
            && self.options.passthrough
            && self.objects.preimages().is_some()
            && !self.accounts.has_quotas()
    }

    /// Has the held file, which is being opened for writing, begin as an object if it is empty and its directory's files do.
    pub(crate) fn begin(&self, held: &mut Held<'_>, node: &OpenNode) {
        let may_move = held.inode.content == Content::None;
        let is_empty = may_move || held.inode.content.is_object();
        let Some(dir) = held.counted_in().filter(|_| is_empty && held.inode.size == 0) else {
            return;
        };
        {
            let mut state = node.state();
            // Of what began as an object when it was made, what it becomes counts too.
            self.note_begin(&mut state, dir);
            // The kernel writes straight to none that is open otherwise.
            if state.cached > 0 {
                return;
            }
        }
        if may_move
            && self.begins_large(dir)
            && let Err(error) = self.migrate(held)
        {
            log::debug!("inode {} begins small: {error}", held.inode.ino);
        }
    }

    /// Notes that a program opens an empty file in `dir` to write.
    pub(crate) fn note_begin(&self, state: &mut NodeState<Arc<dyn File>>, dir: InodeId) {
        (state.began_in, state.began_after) = (Some(dir), self.store.syncs_begun());
    }

    /// Notes what a file became that was empty when it was opened for writing in `dir`, and nobody writes to any more.
    pub(crate) fn note_habit(&self, dir: InodeId, ino: InodeId, has_object: bool) {
        if !has_object && self.session.predictor.in_a_row(dir) == 0 {
            return;
        }
        let size = |inode: Inode| self.attr(&inode).map(|attr| attr.size);
        match self.read_inode(ino).and_then(size) {
            Ok(0) if !has_object => {}
            Ok(0) => self.session.predictor.note(dir, Became::Nothing),
            Ok(size) if size <= self.superblock.large_file_threshold_bytes => {
                self.session.predictor.note(dir, Became::Small);
            }
            Ok(_) => self.session.predictor.note(dir, Became::Large),
            Err(error) => log::debug!("inode {ino}: {error}"),
        }
    }
}
