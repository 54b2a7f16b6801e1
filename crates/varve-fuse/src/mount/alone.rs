//! Mounts of root alone, on which the kernel need not check permissions.
//!
//! After each change of a directory the kernel forgets its attributes, and to check permissions it asks for them
//! again: one of three round trips of a create or rename. On a mount without `allow_other` it lets only processes in
//! whose user and group ids are the mounter's (`fuse_allow_current_process`). If these are root's, permissions bind a
//! process only if it has given up rights. So such a mount does without `default_permissions`.
//!
//! What the kernel then leaves unchecked:
//!
//! - Searching, reading and writing, and owners and groups of changed files: nothing checks them. So the mounter must
//!   have the rights that root has over files ([`RIGHTS`]). On a mount by root without them, as in some containers,
//!   the kernel checks permissions.
//! - The kernel still lets a program of root in that acts as another user (setfsuid). `adapter` refuses it.
//! - access(2) and chdir(2) become requests. `adapter` answers them.
//! - Access control lists mean nothing without checks, but they are stored all the same. The kernel passes them on
//!   only in the first user namespace, so on mounts in other namespaces it checks permissions.
//!
//! The kernel enforces in any case whether a file may be executed, set-id bits, `nosuid`, `nodev`, `noexec` and `ro`.

use rustix::process::{getegid, geteuid, getgid, getuid};
use rustix::thread::{CapabilitySet, capabilities};

use super::MountOptions;

/// The rights over files by which permissions, owners and groups do not bind.
const RIGHTS: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// The map of users and groups in the first user namespace.
const EVERYBODY: [&str; 3] = ["0", "0", "4294967295"];

/// Returns whether a mount with these options by this process is for root alone and goes unchecked.
pub(super) fn is_for_root(options: &MountOptions) -> bool {
    let is_root =
        getuid().is_root() && geteuid().is_root() && getgid().is_root() && getegid().is_root();
    !options.allow_other
        && !options.default_permissions
        && is_root
        && capabilities(None).is_ok_and(|sets| sets.effective.contains(RIGHTS))
        && ["/proc/self/uid_map", "/proc/self/gid_map"].iter().all(|map| maps_everybody(map))
}

fn maps_everybody(map: &str) -> bool {
    std::fs::read_to_string(map).is_ok_and(|map| map.split_whitespace().eq(EVERYBODY))
}
