//! Who the caller of a request is, in which groups, and whether it has a capability.
//!
//! The kernel keeps set-group-id on a file that its group may not execute when somebody of that group changes the file, and takes
//! it when somebody else does. It leaves the bit to the file system, and with a request says the main group of its caller alone.
//! So the other groups are looked up, for such files only.
//!
//! Where mounts may have ids of their own (idmapped mounts, mount_setattr(2)) the kernel says who the caller is with requests alone
//! that make something, and then by the ids of the file system; with all others it says [`UNTOLD`]. So the caller's user and
//! group are looked up, too: those that it has on the machine. By these root is root wherever it asks, and nobody else is. A
//! file's group is compared without the map of the mount that was used, which no request tells.
//!
//! Source: proc_pid_status(5); `fuse_get_req` in the kernel's fs/fuse/dev.c; `setattr_should_drop_sgid` in the kernel's fs/attr.c.

use varve_vfs::Attr;

use crate::protocol::request::Header;

const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Whether the caller of a request takes set-group-id off a file with these attributes by changing it, where group execution does
/// not already decide that. Also if the caller's groups are not to be known.
pub(crate) fn takes_set_gid(header: &Header, attr: &Attr) -> bool {
    attr.perm & (SET_GID | GROUP_EXECUTE) == SET_GID
        && header.gid != attr.gid
        && !is_in_group(header.pid, attr.gid)
}

/// What the kernel says instead of an id.
const UNTOLD: u32 = u32::MAX;

/// The user who makes a request; `None` if that is not to be known.
pub(crate) fn user_of(header: &Header) -> Option<u32> {
    match header.uid {
        UNTOLD => status_of(header.pid).and_then(|status| id_in_force(&status, "Uid:")),
        uid => Some(uid),
    }
}

/// Whether root makes a request.
pub(crate) fn is_root(header: &Header) -> bool {
    user_of(header) == Some(0)
}

/// Whether the kernel has checked who makes a request and does not say it.
pub(crate) fn is_untold(header: &Header) -> bool {
    header.uid == UNTOLD
}

#[allow(clippy::disallowed_methods, reason = "threads belong to the machine")]
fn status_of(thread: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{thread}/status")).ok()
}

/// The last of the four ids in a line of a thread's status, by which files are opened.
fn id_in_force(status: &str, line: &str) -> Option<u32> {
    let ids = status.lines().find_map(|found| found.strip_prefix(line))?;
    ids.split_whitespace().nth(3)?.parse().ok()
}

fn is_in_group(thread: u32, gid: u32) -> bool {
    status_of(thread).is_some_and(|status| {
        id_in_force(&status, "Gid:") == Some(gid) || lists_group(&status, gid)
    })
}

/// Whether a thread has a capability, by its number in capabilities(7). No if that is not to be known.
pub(crate) fn has_capability(thread: u32, number: u32) -> bool {
    status_of(thread).is_some_and(|status| lists_capability(&status, number))
}

fn lists_capability(status: &str, number: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set >> number & 1 != 0)
}

/// Whether a thread of this status has `gid` among its further groups.
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
        assert_eq!(id_in_force(status, "Uid:"), Some(4));
        assert_eq!(id_in_force(status, "Gid:"), Some(8));
        assert_eq!(id_in_force("Uid:\t1\t2\t3\n", "Uid:"), None);
        let header = |uid, pid| Header { opcode: 0, unique: 0, node: 1, uid, gid: UNTOLD, pid };
        let own = std::process::id();
        assert_eq!(user_of(&header(7, own)), Some(7));
        assert_eq!(user_of(&header(UNTOLD, own)), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(user_of(&header(UNTOLD, 0)), None, "of some it is not known");
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
