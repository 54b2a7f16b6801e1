//! Knows the file systems on which one syncfs(2) makes everything durable or reports a failure.
//!
//! The kernel does not pass syncfs(2) to a FUSE file system, which therefore does nothing. overlayfs does not report
//! failed writes below it. Before Linux 5.8 syncfs(2) reported no failure to write data.

use rustix::fs::FsWord;
use rustix::system::uname;

/// `f_type` of ext4, XFS, Btrfs, F2FS, tmpfs.
const WHOLE: [FsWord; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
/// The first version of Linux whose syncfs(2) reports failures to write data.
const TELLS_SINCE: (u32, u32) = (5, 8);

/// Returns whether a file system of this type is one of them on this kernel.
pub(super) fn is_synced_whole(f_type: FsWord) -> bool {
    WHOLE.contains(&f_type) && version(&uname().release().to_string_lossy()) >= Some(TELLS_SINCE)
}

/// Returns the first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!(version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(version("5.8-rc1"), Some((5, 8)));
        assert_eq!(version("4.19"), Some((4, 19)));
        assert_eq!(version("unknown"), None);
    }
}
