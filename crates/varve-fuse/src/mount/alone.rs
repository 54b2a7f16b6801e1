//! Mounts that only root gets into, which the kernel need not check permissions on.
//!
//! After each change of a directory the kernel takes its attributes for unknown, and to check permissions it asks for
//! them again: one of three round trips of a create or rename. On a mount without `allow_other` it lets only those in
//! whose user and group ids are the mounter's (`fuse_allow_current_process`), and if these are root's, permissions bind
//! them only if they have given rights up. So such a mount does without `default_permissions`.
//!
//! What the kernel then leaves unchecked, and who sees to it:
//!
//! - Searching, reading and writing, owners and groups of what is changed: nobody. So the mounter must have the rights that
//!   root has over files ([`RIGHTS`]); a mount by root without them, as in some containers, is checked as ever.
//! - A program that acts as another user (setfsuid) still gets in: `adapter` refuses it.
//! - access(2) and chdir(2) become requests, which `adapter` answers.
//! - Access control lists need checks to mean anything, but are kept all the same: the kernel passes them on in the
//!   first user namespace only, so mounts in others are checked as ever.
//!
//! That a program may be executed at all, set-id bits, `nosuid`, `nodev`, `noexec` and `ro` are the kernel's in any case.

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

/// Whether a mount with these options by this process is for root alone and goes unchecked.
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
