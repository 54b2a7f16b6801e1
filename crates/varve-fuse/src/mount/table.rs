//! The mounts of this process's mount namespace, from /proc/self/mountinfo (proc_pid_mountinfo(5)).
//!
//! A line has these fields, with octal escapes for space, tab, newline and backslash:
//!
//! ```text
//! 36 35 98:0 /root /mount/point rw,noatime shared:1 ... - fstype source superoptions
//! id parent major:minor  root  dir  options  optional fields  separator
//! ```

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::FS_TYPE;

/// One mounted Varve file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// The kernel's number of the mount; another mount may get it later.
    pub id: u64,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// The mount shows all of the file system, not only what lies below one of its directories.
    pub is_whole: bool,
    /// The source: [`super::MountOptions::source`].
    pub source: OsString,
    /// The mount is read-only.
    pub read_only: bool,
    /// Set-user-id and set-group-id bits are ignored.
    pub no_suid: bool,
    /// Device nodes are ignored.
    pub no_dev: bool,
    /// No program can be executed.
    pub no_exec: bool,
    /// No symbolic link is followed.
    pub no_symfollow: bool,
    /// The peer groups from which mounts and unmounts propagate to this mount.
    pub peers: Vec<u32>,
    /// The number behind `/sys/fs/fuse/connections`: the minor number of the file system's `st_dev`.
    pub connection: u32,
    /// The id of the user who mounted the file system and serves it.
    pub user: u32,
}

/// Returns every Varve mount that this process can see, in the order in which they were made.
#[allow(clippy::disallowed_methods, reason = "the mount table belongs to the machine")]
pub fn find_mounts() -> std::io::Result<Vec<MountPoint>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Returns every Varve mount that the process `id` can see, which may be in another mount namespace.
#[allow(clippy::disallowed_methods, reason = "the mount table belongs to the machine")]
pub fn find_mounts_of(id: u32) -> std::io::Result<Vec<MountPoint>> {
    Ok(parse(&std::fs::read(format!("/proc/{id}/mountinfo"))?))
}

/// Returns the Varve mounts in a mount table.
pub(super) fn parse(table: &[u8]) -> Vec<MountPoint> {
    table.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountPoint> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = std::str::from_utf8(fields.nth(1)?).ok()?;
    let (root, dir) = (fields.next()?, fields.next()?);
    let options = fields.next()?;
    let groups = fields.by_ref().take_while(|&field| field != b"-").filter_map(|field| {
        let (_, group) = std::str::from_utf8(field).ok()?.split_once(':')?;
        group.parse().ok()
    });
    let (peers, mut described) = (groups.collect(), fields);
    if described.next()? != FS_TYPE.as_bytes() {
        return None;
    }
    let source = described.next()?;
    let mut told = described.next()?.split(|&byte| byte == b',');
    let user = told.find_map(|option| option.strip_prefix(b"user_id="))?;
    let has = |word: &[u8]| options.split(|&byte| byte == b',').any(|option| option == word);
    Some(MountPoint {
        id,
        dir: PathBuf::from(OsString::from_vec(unescape(dir))),
        is_whole: root == b"/",
        source: OsString::from_vec(unescape(source)),
        read_only: has(b"ro"),
        no_suid: has(b"nosuid"),
        no_dev: has(b"nodev"),
        no_exec: has(b"noexec"),
        no_symfollow: has(b"nosymfollow"),
        peers,
        connection: device.split_once(':')?.1.parse().ok()?,
        user: std::str::from_utf8(user).ok()?.parse().ok()?,
    })
}

/// Replaces each `\ooo` by the byte with that octal number.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_mount_table_is_read() {
        let line = br"98 29 0:47 / /mnt/with\040space ro,nosuid shared:5 - fuse.varve /srv/store\134x rw,user_id=1000";
        let found = parse_line(line).unwrap();
        assert_eq!(found.dir, PathBuf::from("/mnt/with space"));
        assert_eq!(found.source, OsString::from("/srv/store\\x"));
        assert!(found.read_only && found.no_suid && !found.no_dev && !found.no_exec);
        assert_eq!((found.id, found.connection, found.user), (98, 47, 1000));
        assert!(found.is_whole);
        let bound = br"99 29 0:47 /dir /mnt rw - fuse.varve /srv/store rw,user_id=0";
        assert!(!parse_line(bound).unwrap().is_whole);
        assert_eq!(found.peers, [5]);
    }

    #[test]
    fn other_file_systems_and_broken_lines_are_passed_over() {
        for line in [
            "22 27 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw",
            "22 27 0:20 / /mnt rw - fuse.other /x rw",
            "22 27 0:20 / /mnt rw - fuse.varve",
            "22 27 0:20 / /mnt rw - fuse.varve /srv/store rw",
            "22 27",
            "",
        ] {
            assert_eq!(parse_line(line.as_bytes()), None, "{line}");
        }
    }
}
