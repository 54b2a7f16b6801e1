//! How to serve a mount: the options of a session and their defaults.

use std::num::NonZeroUsize;
use std::time::Duration;

use varve_types::InodeId;

use crate::bursts::IdlePoll;
use crate::readers::Placement;
use crate::transport::Transport;

/// When a listing of a directory includes the attributes of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaddirPlus {
    /// When the kernel has seen that the program asks for attributes.
    Auto,
    /// Never.
    Never,
    /// Always.
    Always,
}

/// How to serve a mount.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How requests travel. `None` uses rings if the kernel offers them, else /dev/fuse.
    pub transport: Option<Transport>,
    /// The number of reader threads of /dev/fuse. `None` starts one per CPU, at most 16, because each may fill a
    /// buffer of 1 MiB. Rings have one thread for each CPU in any case.
    pub threads: Option<NonZeroUsize>,
    /// Where the reader threads run.
    pub placement: Placement,
    /// Whether idle CPUs poll during a burst of requests.
    pub idle_poll: IdlePoll,
    /// Let threads of rings give way to their callers during a burst of requests, if this process may raise their
    /// priority again (CAP_SYS_NICE).
    pub give_way: bool,
    /// Give each reader of /dev/fuse a descriptor of its own (FUSE_DEV_IOC_CLONE).
    pub clone_device: bool,
    /// How long the kernel may cache the inode of a name. The file system may say less ([`varve_vfs::Entry::keep`]).
    pub entry_timeout: Duration,
    /// How long the kernel may cache that a name is absent.
    pub negative_timeout: Duration,
    /// How long the kernel may cache attributes. The file system may say less ([`varve_vfs::Attr::keep`]).
    pub attr_timeout: Duration,
    /// Have the kernel drop the cached bytes of a file when it learns of another size or time of last change
    /// (FUSE_AUTO_INVAL_DATA), for a file system whose files change elsewhere without a notice about each.
    pub auto_invalidate: bool,
    /// Let the kernel read and write large files without this program.
    pub passthrough: bool,
    /// Serve extended attributes. Without this the kernel stops asking for them, which saves a round trip at the
    /// first write to each file.
    pub xattr: bool,
    /// Have the kernel obey access control lists, which are extended attributes. It then asks once for the list of
    /// each inode to which a user other than the owner wants access, and for the list of the root each time. On a
    /// mount where the kernel checks nothing ([`crate::Mounted::is_for_root_alone`]) lists are stored but nobody
    /// obeys them.
    pub acl: bool,
    /// When listings include attributes.
    pub readdir_plus: ReaddirPlus,
    /// The directory that the mount shows as its root.
    pub root: InodeId,
    /// Make every write durable before the answer (mount option `sync`). Excludes passthrough.
    pub sync_writes: bool,
    /// Make every change of a directory durable before the answer (mount options `sync` and `dirsync`).
    pub sync_dirs: bool,
}

/// Long enough to mean for ever, because the kernel's caches do not go stale. [`crate::Notifier`] tells the kernel
/// what changes by another way than through its mount. What may change without a notice is cached no longer than the
/// file system says ([`varve_vfs::Keep`]).
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(365 * 24 * 3600);

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            transport: None,
            threads: None,
            placement: Placement::Pinned,
            idle_poll: IdlePoll::Auto,
            give_way: true,
            clone_device: false,
            entry_timeout: TIMEOUT_DEFAULT,
            negative_timeout: TIMEOUT_DEFAULT,
            attr_timeout: TIMEOUT_DEFAULT,
            auto_invalidate: false,
            passthrough: true,
            xattr: true,
            acl: true,
            readdir_plus: ReaddirPlus::Auto,
            root: InodeId::ROOT,
            sync_writes: false,
            sync_dirs: false,
        }
    }
}
