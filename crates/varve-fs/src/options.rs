//! What a file system is formatted and mounted with.

use std::path::PathBuf;

use varve_engine::StoreDesign;
use varve_engine::options::DbOptions;
use varve_schema::EntrySuffix;

use crate::usage::MARKS_MAX;

/// How reads change the time of last access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Atime {
    /// Only when it is older than the last change, or than a day (the kernel's default).
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// Always.
    Strict,
}

use crate::EngineKind;

/// Fixed when a store is formatted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    /// Files larger than this many bytes become one file each in the storage below; 4096 to 2^24.
    pub large_file_threshold_bytes: u64,
    /// Bits kept of the hash of a name, 1 to 55; fewer only to test collisions.
    pub name_hash_bits: u32,
    /// File data kept in the store is compressed.
    pub compression: bool,
    /// The store that keeps the rows.
    pub engine: EngineKind,
    /// What the tables of the store are made of, if it is Varve's.
    pub design: StoreDesign,
    /// Format although the directory is not empty. Never replaces a store.
    pub force: bool,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// Key of the hash of names, 32 hexadecimal digits, for a store that is to receive what others send
    /// ([`crate::stream`]); a random one otherwise.
    pub name_hash_key: Option<String>,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        FormatOptions {
            large_file_threshold_bytes: 64 * 1024,
            name_hash_bits: EntrySuffix::HASH_BITS_MAX,
            compression: true,
            engine: EngineKind::default(),
            design: StoreDesign::default(),
            force: false,
            root_owner: (0, 0),
            name_hash_key: None,
        }
    }
}

/// How files begin that are empty when they are opened for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewFiles {
    /// As large ones where the last files of their directory grew beyond the threshold, else as small ones.
    #[default]
    Auto,
    /// As small ones, in the store.
    Small,
    /// As large ones, in the storage below.
    Large,
}

/// Chosen at each mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Refuse every change.
    pub read_only: bool,
    /// How reads change the time of last access.
    pub atime: Atime,
    /// Listings change the times of last access of directories, by `atime`.
    pub dir_atime: bool,
    /// Obey access control lists. Else those that there are stay, and mean nothing.
    pub acl: bool,
    /// Memory for the engine's memtables and caches and for what is known of looked-up inodes, in bytes.
    pub memory_budget_bytes: usize,
    /// Offer the descriptors of large files to the front end.
    pub passthrough: bool,
    /// Which new files begin as large ones do, if their descriptors are offered.
    pub new_files: NewFiles,
    /// Inodes that the front end looked up whose place is kept in memory; the rest is kept in the store.
    /// `None`: as many as fit an eighth of the memory budget.
    pub located_inodes_max: Option<usize>,
    /// Object files and tables open at once, at most; half of it for each, but no more than 512 tables.
    pub open_files_max: usize,
    /// Directories that may have changes below them to tell their parents before they tell them at once.
    pub marked_dirs_max: usize,
    /// Keep files that were open when their last name went over a restart, until [`varve_vfs::Vfs::end_grace`]: clients
    /// of a server may open them again ([`varve_vfs::Vfs::reopen`]). Else opening or closing the store removes them. Files that move
    /// while they are open get rows of their own then, so that clients find them again too.
    pub keep_orphans: bool,
    /// Several front ends change files, as the clients of a server do: none knows where a file ends, so appends go to the end whatever
    /// their front end takes that to be.
    pub many_front_ends: bool,
    /// Where the front end makes the file system visible, to tell others who ask for the lock.
    pub mount_point: Option<PathBuf>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            atime: Atime::Relatime,
            dir_atime: true,
            acl: true,
            memory_budget_bytes: 256 << 20,
            passthrough: true,
            new_files: NewFiles::default(),
            located_inodes_max: None,
            open_files_max: 512,
            marked_dirs_max: MARKS_MAX,
            keep_orphans: false,
            many_front_ends: false,
            mount_point: None,
        }
    }
}

/// What one looked-up inode takes in memory, with the hash table's free room, in bytes.
const LOCATED_INODE_BYTES: usize = 96;
/// One part in so many of the budget is for what nobody counts: memory the allocator keeps between uses, buffers of
/// requests, flushes and merges. Measured after unpacking, copying and reading a kernel tree: 7 percent.
const UNCOUNTED_SHARE: usize = 8;
/// More table files than this need not be open at once.
const OPEN_TABLES_MAX: usize = 512;

impl MountOptions {
    /// Bytes of rows of clones that stay in memory where the device has no room for them. Taken then alone.
    pub(crate) fn kept_bytes_max(&self) -> usize {
        self.memory_budget_bytes / 16
    }

    /// Inodes whose place is kept in memory.
    pub(crate) fn located_inodes(&self) -> usize {
        self.located_inodes_max.unwrap_or(self.memory_budget_bytes / 8 / LOCATED_INODE_BYTES)
    }

    /// Object files open at once.
    pub(crate) fn open_objects_max(&self) -> usize {
        self.open_files_max - self.open_tables_max()
    }

    fn open_tables_max(&self) -> usize {
        (self.open_files_max / 2).min(OPEN_TABLES_MAX)
    }

    /// What the engine of a store of this design is opened with.
    pub(crate) fn engine(&self, design: StoreDesign) -> DbOptions {
        let mut options = DbOptions::with_memory_budget(self.engine_budget_bytes());
        options.open_tables_max = self.open_tables_max();
        design.apply(&mut options);
        // Whoever made the call waits, when it holds nothing any more.
        options.lock_wait = std::time::Duration::ZERO;
        options
    }

    /// The engine's part of the memory budget: all but the places of inodes and what nobody counts, at least
    /// half.
    fn engine_budget_bytes(&self) -> usize {
        let budget = self.memory_budget_bytes;
        let places = self.located_inodes().saturating_mul(LOCATED_INODE_BYTES);
        budget.saturating_sub(places).saturating_sub(budget / UNCOUNTED_SHARE).max(budget / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_budget_is_shared_out_and_not_exceeded() {
        let options = MountOptions::default();
        let places = options.located_inodes() * LOCATED_INODE_BYTES;
        let counted = places + options.engine_budget_bytes();
        let uncounted = options.memory_budget_bytes / UNCOUNTED_SHARE;
        assert!(counted + uncounted <= options.memory_budget_bytes);
        assert!(options.located_inodes() > 300_000);
        let many = MountOptions { located_inodes_max: Some(1 << 40), ..options };
        assert_eq!(many.engine_budget_bytes(), many.memory_budget_bytes / 2);
    }
}
