//! How to serve a mount: the options of a session and their defaults.

use std::num::NonZeroUsize;
use std::time::Duration;

use varve_types::InodeId;

use crate::bursts::IdlePoll;
use crate::readers::Placement;
use crate::transport::Transport;

/// When listing a directory also brings the attributes of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaddirPlus {
    /// When the kernel has seen that the program asks for attributes too.
    Auto,
    /// Never.
    Never,
    /// Always.
    Always,
}

/// How to serve a mount.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How requests travel; `None` takes rings where the kernel offers them, else /dev/fuse.
    pub transport: Option<Transport>,
    /// Number of reader threads of /dev/fuse; `None` takes one per CPU, at most 16: each may fill a buffer of
    /// 1 MiB. Rings have one for each CPU in any case.
    pub threads: Option<NonZeroUsize>,
    /// Where they run.
    pub placement: Placement,
    /// Whether idle CPUs poll while requests come thick.
    pub idle_poll: IdlePoll,
    /// Let threads of rings give way to their callers while requests come thick, where this process may call them back
    /// (CAP_SYS_NICE).
    pub give_way: bool,
    /// Give each reader of /dev/fuse a descriptor of its own (FUSE_DEV_IOC_CLONE).
    pub clone_device: bool,
    /// How long the kernel may take a name's inode for known.
    pub entry_timeout: Duration,
    /// How long the kernel may take a name for absent.
    pub negative_timeout: Duration,
    /// How long the kernel may take attributes for known.
    pub attr_timeout: Duration,
    /// Let the kernel read and write large files straight.
    pub passthrough: bool,
    /// Serve extended attributes. Without them the kernel stops asking, which saves a round trip at the
    /// first write to each file.
    pub xattr: bool,
    /// Have the kernel obey access control lists, which are extended attributes. It then asks once for the
    /// list of each inode that somebody else than the owner wants access to, and for that of the root each
    /// time. Where it checks nothing ([`Mounted::is_for_root_alone`]) they are kept and obeyed by nobody.
    pub acl: bool,
    /// Attributes with listings.
    pub readdir_plus: ReaddirPlus,
    /// The directory that the mount shows as its root.
    pub root: InodeId,
    /// Make every write durable before it is answered (mount option `sync`). Excludes passthrough.
    pub sync_writes: bool,
    /// Make every change of a directory durable before it is answered (mount options `sync` and `dirsync`).
    pub sync_dirs: bool,
}

/// Long enough for ever: nothing that the kernel knows goes stale. What changes by another way than through its mount it is told
/// ([`Notifier`]), and of attributes of which nobody could tell it, that they do not hold ([`varve_vfs::Attr::is_fleeting`]).
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
