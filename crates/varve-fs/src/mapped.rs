//! Large files that programs may go on writing to although they have closed them.
//!
//! A program that has a large file open for writing straight may map it and close it. What it then changes in memory goes to the
//! object, and the kernel reports neither these writes nor their end. So:
//!
//! 1. A file that is open for writing straight is noted when it is closed, before it counts as closed
//!    ([`Mapped::note`](crate::objects::Mapped::note)).
//! 2. An operation that must know all files that are written straight asks which of the noted files are still mapped
//!    ([`VarveFs::mapped_files`]): the kernel says whether somebody has an object open for writing, as a mapping has. A view that begins
//!    saves a preimage of each of them, as of the files that are open; a commit that would change one is refused. A serializable
//!    transaction, which sees the object itself, does not open one ([`VarveFs::check_changed_elsewhere`]).
//! 3. Files that are not mapped are forgotten when somebody asks for them, and when many are noted.
//!
//! Neither a process that takes over nor the next mount knows files that were closed before and are still mapped.
//!
//! Programs that have a file open straight when the daemon dies go on writing to it, too, and the kernel reports no open
//! to the next mount. So a mount notes each file that was being written according to a pending row, if somebody has its
//! object open for writing ([`VarveFs::note_left_open`]), and leaves its row dirty until nobody has. So does a process that takes over.

use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::fs::VarveFs;

impl VarveFs {
    /// Of a mount that begins: notes a file that was being written when an earlier one died, if somebody still writes to it.
    pub(crate) fn note_left_open(&self, ino: InodeId) -> FsResult<()> {
        if self.objects.preimages().is_some() && self.is_written_straight(ino)? {
            self.objects.mapped.note_left(ino);
        }
        Ok(())
    }

    /// Whether a program still writes to a file that it opened before a daemon died.
    pub(crate) fn is_left_written(&self, ino: InodeId) -> FsResult<bool> {
        if !self.objects.mapped.is_left(ino) {
            return Ok(false);
        }
        let is_written = self.is_written_straight(ino)?;
        if !is_written {
            self.objects.mapped.end_left(ino);
        }
        Ok(is_written)
    }

    /// Forgets the noted files that are not mapped.
    pub(crate) fn forget_unmapped(&self) {
        if let Err(error) = self.mapped_files(|_| true) {
            log::debug!("files that were closed stay noted: {error}");
        }
        self.objects.mapped.end_look();
    }

    /// The files among those that are `asked` for which are closed and still mapped, or open again, for writing straight.
    pub(crate) fn mapped_files(&self, asked: impl Fn(InodeId) -> bool) -> FsResult<Vec<InodeId>> {
        let mut mapped = Vec::new();
        for (ino, number) in self.objects.mapped.noted().into_iter().filter(|(ino, _)| asked(*ino))
        {
            match self.is_written_straight(ino)? {
                true => mapped.push(ino),
                false => self.objects.mapped.forget(ino, number),
            }
        }
        Ok(mapped)
    }

    /// Whether somebody has the object of `ino` open for writing, besides this program.
    pub(crate) fn is_written_straight(&self, ino: InodeId) -> FsResult<bool> {
        let is_open = self.session.inodes.node(ino).is_some_and(|node| {
            let state = node.state();
            state.writers > 0 && state.passthrough > 0
        });
        Ok(is_open || self.objects.has_writers(ino)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use varve_env::os::OsEnv;
    use varve_env::{Env, OpenMode};
    use varve_types::FileName;
    use varve_vfs::{Caller, OpenFlags, Vfs};

    use super::*;
    use crate::objects::NOTED_MAX;
    use crate::{FormatOptions, MountOptions};

    #[test]
    fn what_is_not_mapped_is_forgotten() {
        let temp = tempfile::tempdir().unwrap();
        let (env, dir): (Arc<dyn Env>, _) = (OsEnv::new(), temp.path().join("store"));
        let options =
            FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
        crate::format(&env, &dir, &options).unwrap();
        let fs = VarveFs::open(Arc::clone(&env), &dir, MountOptions::default()).unwrap();
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let closed = |text: &str| {
            let name = FileName::new(text.as_bytes()).unwrap();
            let (entry, made) = fs.create(Caller::ROOT, InodeId::ROOT, name, 0o600, flags).unwrap();
            let ino = entry.attr.ino;
            fs.write(ino, made.handle, 0, &[1; 5000], false).unwrap();
            fs.release(ino, made.handle).unwrap();
            let opened = fs.open(ino, flags).unwrap();
            assert!(opened.passthrough);
            let map = env.open(&fs.objects.path(ino), OpenMode::ReadWrite).unwrap();
            fs.release(ino, opened.handle).unwrap();
            (ino, map)
        };
        let (mapped, map) = closed("mapped");
        for i in 0..3 * NOTED_MAX {
            closed(&format!("f{i}"));
            assert!(fs.objects.mapped.noted().len() <= NOTED_MAX);
        }
        // A sync under way has them open for writing.
        fs.sync().unwrap();
        assert_eq!(fs.mapped_files(|ino| ino == mapped).unwrap(), [mapped]);
        assert_eq!(fs.mapped_files(|_| true).unwrap(), [mapped]);
        assert_eq!(fs.objects.mapped.noted().len(), 1);
        // Noted again while it is looked for the last time.
        let [(ino, number)] = fs.objects.mapped.noted()[..] else { panic!("one is noted") };
        assert_eq!(ino, mapped);
        assert!(!fs.objects.mapped.note(mapped));
        fs.objects.mapped.forget(mapped, number);
        assert_eq!(fs.mapped_files(|_| true).unwrap(), [mapped]);
        drop(map);
        assert_eq!(fs.mapped_files(|_| true).unwrap(), []);
        assert!(fs.objects.mapped.noted().is_empty());
    }
}
