//! fallocate: room is not reserved for files in the store, since the engine writes them elsewhere in
//! any case; sizes, holes and zeros are as asked.

use varve_env::Allocate;
use varve_namespace::Changes;
use varve_namespace::flags::check_allocates;
use varve_types::InodeId;
use varve_vfs::{AllocateMode, FsError, FsResult, Gave, Handle};

use super::{changed, end_of};
use crate::fs::VarveFs;
use crate::held::Held;
use crate::open::OpenFile;

impl VarveFs {
    pub(crate) fn do_fallocate(
        &self,
        ino: InodeId,
        handle: Handle,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<()> {
        let file = self.session.handles.get(ino, handle)?;
        if !file.flags.write {
            return Err(FsError::BadHandle);
        }
        if len == 0 {
            return Err(FsError::Invalid("an empty range"));
        }
        let end = end_of(offset, len)?;
        if mode != AllocateMode::PunchHole {
            self.check_room(&file, offset, len)?;
        }
        let extends = matches!(mode, AllocateMode::Extend | AllocateMode::ZeroRange);
        let mut held = if extends { self.hold_counted(ino)? } else { self.hold(ino)? };
        check_allocates(&held.inode, mode)?;
        self.own_bytes(&mut held)?;
        let mut in_object = held.inode.content.is_object();
        if !in_object && extends && end > self.superblock.large_file_threshold_bytes {
            self.migrate(&mut held)?;
            in_object = true;
        }
        if in_object {
            let len = match mode {
                AllocateMode::KeepSize | AllocateMode::ZeroKeepSize => {
                    len.min(self.reservable(&held)?.saturating_sub(offset))
                }
                _ => len,
            };
            drop(held);
            if len == 0 {
                return Ok(());
            }
            let object = self.object_file(&file.node)?;
            let allocate = || {
                let done = self.with_room(|| object.allocate(env_mode(mode), offset, len));
                done.map_err(|error| self.object_error("allocate room in", ino, error))
            };
            if extends && self.accounts.has_quotas() {
                let _growing = file.node.append.lock();
                return self.growing(ino, object.as_ref(), end, allocate);
            }
            return allocate();
        }
        let mut changes = Changes::new();
        let zeroes = matches!(
            mode,
            AllocateMode::PunchHole | AllocateMode::ZeroRange | AllocateMode::ZeroKeepSize
        );
        if zeroes {
            self.zero_small(&mut changes, &mut held.inode, offset, end)?;
        }
        if extends {
            held.inode.size = held.inode.size.max(end);
        }
        changed(&mut held.inode, self.now());
        self.stage(&mut changes, &mut held)?;
        self.commit_call(&mut changes, Gave::Nothing)
    }

    /// How far room may be reserved in a large file. What is reserved beyond its end counts nowhere, and stays: where limits hold,
    /// or may once the file has a name, nothing is.
    fn reservable(&self, held: &Held<'_>) -> FsResult<u64> {
        let limited = match held.counted_in() {
            Some(dir) => self.accounts.limits(Some(dir))?,
            None => self.accounts.has_quotas(),
        };
        if limited { Ok(self.object_stat(held.inode.ino)?.len) } else { Ok(u64::MAX) }
    }

    /// Refuses to reserve what there is no room for, before the storage below gives all that is left and then
    /// fails.
    fn check_room(&self, file: &OpenFile, offset: u64, len: u64) -> FsResult<()> {
        if len <= self.superblock.large_file_threshold_bytes {
            return Ok(());
        }
        // Of what there is already, as much as may lie before the range helps nothing; nor does what a view has from its base.
        let held = match file.node.has_object() && self.objects.preimages().is_some() {
            true => self.object_stat(file.node.ino)?.allocated.saturating_sub(offset),
            false => 0,
        };
        if len.saturating_sub(held) <= self.room_below()?.available_bytes {
            return Ok(());
        }
        Err(FsError::NoSpace(format!("{len} bytes for inode {}", file.node.ino)))
    }
}

fn env_mode(mode: AllocateMode) -> Allocate {
    match mode {
        AllocateMode::Extend => Allocate::Extend,
        AllocateMode::KeepSize => Allocate::KeepSize,
        AllocateMode::PunchHole => Allocate::PunchHole,
        AllocateMode::ZeroRange => Allocate::ZeroRange,
        AllocateMode::ZeroKeepSize => Allocate::ZeroKeepSize,
    }
}
