//! Whether the caller of a request is in a group or has a capability.
//!
//! The kernel keeps set-group-id on a file that its group may not execute when somebody of that group changes the file, and takes
//! it when somebody else does. It leaves the bit to the file system, and with a request says the main group of its caller alone.
//! So the other groups are looked up, for such files only.
//!
//! Source: proc_pid_status(5); `setattr_should_drop_sgid` in the kernel's fs/attr.c.

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

#[allow(clippy::disallowed_methods, reason = "threads belong to the machine")]
fn is_in_group(thread: u32, gid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{thread}/status"))
        .is_ok_and(|status| lists_group(&status, gid))
}

/// Whether a thread has a capability, by its number in capabilities(7). No if that is not to be known.
#[allow(clippy::disallowed_methods, reason = "threads belong to the machine")]
pub(crate) fn has_capability(thread: u32, number: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{thread}/status"))
        .is_ok_and(|status| lists_capability(&status, number))
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
    fn groups_are_found_whole() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 27 1000 \nNStgid:\t12\n";
        assert!([4, 27, 1000].iter().all(|gid| lists_group(status, *gid)));
        assert!([7, 2, 100, 12].iter().all(|gid| !lists_group(status, *gid)));
        assert!(!lists_group("Groups:\t \n", 0) && !lists_group("", 0));
        assert!(!is_in_group(0, 0), "of some they are not known");
    }
}
