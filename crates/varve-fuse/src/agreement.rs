//! What this program and the kernel agreed on in the handshake, for the life of a mount.

use std::num::NonZeroUsize;

use crate::handover::{OpenInode, ROOT_ALONE, SessionState};
use crate::protocol::constants::{FUSE_PASSTHROUGH, FUSE_POSIX_ACL, FUSE_SETXATTR_EXT};
use crate::protocol::reply::InitOut;
use crate::transport::{NoUring, Transport};

/// The largest write in one request, in bytes. The kernel has the same limit by default.
pub(crate) const WRITE_BYTES_MAX: u32 = 1 << 20;
/// The size of a buffer for the longest request: a write with its header, or two names.
pub(crate) const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX as usize + 4096;

/// The agreement. It holds for the life of the mount.
#[derive(Debug)]
pub(crate) struct Agreement {
    /// The capabilities, and [`ROOT_ALONE`].
    flags: u64,
    /// The largest write in one request.
    write_bytes_max: u32,
    /// How requests travel.
    pub(crate) transport: Transport,
    /// Why requests do not travel through rings, unless the caller chose so.
    pub(crate) no_uring: Option<NoUring>,
}

impl Agreement {
    /// Returns the result of a handshake: the kernel got `answer`, and requests travel by `transport`.
    pub(crate) fn new(
        answer: &InitOut,
        root_alone: bool,
        transport: Transport,
        no_uring: Option<NoUring>,
    ) -> Agreement {
        let flags = answer.flags | if root_alone { ROOT_ALONE } else { 0 };
        Agreement { flags, write_bytes_max: answer.max_write, transport, no_uring }
    }

    /// Returns the agreement of the session that left `state`. The error is the reason why this session cannot keep
    /// it.
    pub(crate) fn of(state: &SessionState) -> Result<Agreement, String> {
        let SessionState { flags, write_bytes_max, .. } = *state;
        if write_bytes_max > WRITE_BYTES_MAX {
            let reason = "the kernel was promised room for writes of";
            return Err(format!("{reason} {write_bytes_max} bytes, more than this version has"));
        }
        Ok(Agreement { flags, write_bytes_max, transport: Transport::Dev, no_uring: None })
    }

    /// Returns the state that the next session needs.
    pub(crate) fn state(&self, open: Vec<OpenInode>) -> SessionState {
        SessionState { flags: self.flags, write_bytes_max: self.write_bytes_max, open }
    }

    /// Returns whether SETXATTR comes in its longer form.
    pub(crate) fn setxattr_ext(&self) -> bool {
        self.flags & FUSE_SETXATTR_EXT != 0
    }

    /// Returns whether the kernel obeys access control lists.
    pub(crate) fn posix_acl(&self) -> bool {
        self.flags & FUSE_POSIX_ACL != 0
    }

    /// Returns whether the kernel checks no permissions, because it lets only root in.
    pub(crate) fn root_alone(&self) -> bool {
        self.flags & ROOT_ALONE != 0
    }

    /// Returns whether backing files may be registered.
    pub(crate) fn passthrough(&self) -> bool {
        self.flags & FUSE_PASSTHROUGH != 0
    }

    /// Returns the agreement and the configured number of reader threads as JSON, for programs.
    pub(crate) fn status_json(&self, threads: Option<NonZeroUsize>) -> String {
        let mut status = format!("{{\"transport\":\"{}\"", self.transport);
        if let Some(threads) = threads {
            status.push_str(&format!(",\"threads\":{threads}"));
        }
        if let Some(reason) = &self.no_uring {
            let reason = reason.to_string().replace(['"', '\\'], "'");
            status.push_str(&format!(",\"no_io_uring\":\"{reason}\""));
        }
        if self.root_alone() {
            status.push_str(",\"root_alone\":true");
        }
        status.push('}');
        status
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_status_is_json_whatever_the_reason() {
        let reason = io::Error::other("a \"quoted\" \\ reason");
        let mut agreement =
            Agreement { flags: 0, write_bytes_max: 0, transport: Transport::Uring, no_uring: None };
        assert_eq!(agreement.status_json(None), r#"{"transport":"io_uring"}"#);
        assert_eq!(
            agreement.status_json(NonZeroUsize::new(3)),
            r#"{"transport":"io_uring","threads":3}"#
        );
        agreement.flags = ROOT_ALONE;
        assert_eq!(agreement.status_json(None), r#"{"transport":"io_uring","root_alone":true}"#);
        agreement.flags = 0;
        agreement.transport = Transport::Dev;
        agreement.no_uring = Some(NoUring::Refused(reason));
        assert_eq!(
            agreement.status_json(None),
            r#"{"transport":"/dev/fuse","no_io_uring":"no io_uring for each CPU: a 'quoted' ' reason"}"#
        );
    }
}
