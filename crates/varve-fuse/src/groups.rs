//! Finds out the user, the groups and the capabilities of a caller.
//!
//! On a file that its group may not execute, set-group-id stays when a member of the group changes the file, and is
//! cleared when any other user does. The kernel leaves this to the file system, and a request carries only the main
//! group of its caller. So the other groups are looked up, only for such files.
//!
//! Where mounts may map ids (idmapped mounts, mount_setattr(2)), only requests that make an object carry the ids of
//! the caller, and then as the ids of the file system. All other requests carry [`WITHHELD`]. So the user and the
//! group that the caller has on the machine are looked up too. By these ids only root is root, on any mount. A
//! file's group is compared without the map of the mount, which no request carries.
//!
//! Source: proc_pid_status(5); `fuse_get_req` in the kernel's fs/fuse/dev.c; `setattr_should_drop_sgid` in the kernel's fs/attr.c.

use varve_vfs::Attr;

use crate::protocol::request::Header;

const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Returns whether a change by the caller of a request clears set-group-id on a file with these attributes, if group
/// execution does not already decide that. True also if the caller's groups cannot be found out.
pub(crate) fn takes_set_gid(header: &Header, attr: &Attr) -> bool {
    attr.perm & (SET_GID | GROUP_EXECUTE) == SET_GID
        && header.gid != attr.gid
        && !is_in_group(header.pid, attr.gid)
}

/// What the kernel sends in place of an id that it withholds.
const WITHHELD: u32 = u32::MAX;

/// Returns the user who makes a request; `None` if that cannot be found out.
pub(crate) fn user_of(header: &Header) -> Option<u32> {
    match header.uid {
        WITHHELD => status_of(header.pid).and_then(|status| file_system_id(&status, "Uid:")),
        uid => Some(uid),
    }
}

/// Returns whether root makes a request.
pub(crate) fn is_root(header: &Header) -> bool {
    user_of(header) == Some(0)
}

/// Returns whether the kernel has checked the caller of a request and withholds its ids.
pub(crate) fn is_withheld(header: &Header) -> bool {
    header.uid == WITHHELD
}

#[allow(clippy::disallowed_methods, reason = "threads belong to the machine")]
fn status_of(thread: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{thread}/status")).ok()
}

/// Returns the last of the four ids in a line of a thread's status: the id for access to files.
fn file_system_id(status: &str, line: &str) -> Option<u32> {
    let ids = status.lines().find_map(|found| found.strip_prefix(line))?;
    ids.split_whitespace().nth(3)?.parse().ok()
}

fn is_in_group(thread: u32, gid: u32) -> bool {
    status_of(thread).is_some_and(|status| {
        file_system_id(&status, "Gid:") == Some(gid) || lists_group(&status, gid)
    })
}

/// Returns whether a thread has a capability, by its number in capabilities(7). False if that cannot be found out.
pub(crate) fn has_capability(thread: u32, number: u32) -> bool {
    status_of(thread).is_some_and(|status| lists_capability(&status, number))
}

fn lists_capability(status: &str, number: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set >> number & 1 != 0)
}

/// Returns whether a thread of this status has `gid` among its supplementary groups.
fn lists_group(status: &str, gid: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_those_in_effect() {
        let status =
            "CapInh:\tffffffffffffffff\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000000208\n";
        for number in 0..64 {
            assert_eq!(lists_capability(status, number), [3, 9].contains(&number), "{number}");
        }
        assert!(!lists_capability("CapEff:\tx\n", 9) && !lists_capability("", 9));
        assert!(!has_capability(0, 9), "of some they are not known");
    }

    #[test]
    fn ids_are_those_by_which_files_are_opened() {
        let status = "Name:\tUid:\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n";
        assert_eq!(file_system_id(status, "Uid:"), Some(4));
        assert_eq!(file_system_id(status, "Gid:"), Some(8));
        assert_eq!(file_system_id("Uid:\t1\t2\t3\n", "Uid:"), None);
        let header = |uid, pid| Header { opcode: 0, unique: 0, node: 1, uid, gid: WITHHELD, pid };
        let own = std::process::id();
        assert_eq!(user_of(&header(7, own)), Some(7));
        assert_eq!(user_of(&header(WITHHELD, own)), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(user_of(&header(WITHHELD, 0)), None, "some callers are unknown");
    }

    #[test]
    fn groups_are_found_whole() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 27 1000 \nNStgid:\t12\n";
        assert!([4, 27, 1000].iter().all(|gid| lists_group(status, *gid)));
        assert!([7, 2, 100, 12].iter().all(|gid| !lists_group(status, *gid)));
        assert!(!lists_group("Groups:\t \n", 0) && !lists_group("", 0));
        assert!(!is_in_group(0, 0), "of some they are not known");
    }
}
