//! Serves transactions to programs that have only the mount.
//!
//! By ioctls on any directory of the mount:
//!
//! ```text
//! | id u64 | flags u64: 0 |     the argument of all of them, in the machine's byte order
//!
//! begin   _IOR('V', 1, 16 bytes)   a transaction that shows the directory; returns its id
//! commit  _IOW('V', 2, 16 bytes)
//! abort   _IOW('V', 3, 16 bytes)
//! ```
//!
//! By extended attributes, for programs without ioctls, such as shells:
//!
//! ```text
//! begin   getxattr varve.txn-begin[,OPTION=VALUE...] of the directory    its value is the id, in digits
//! commit  setxattr varve.txn-commit of the transaction's own file, empty
//! abort   setxattr varve.txn-abort  of the transaction's own file, empty
//! ```
//!
//! A commit tells the kernel which names have changed, and that takes the locks of directories. The kernel holds no
//! lock during an ioctl or while a program reads an attribute. While a program sets an attribute, the kernel locks
//! the file. So each transaction has a file of its own (`Vfs::controlled`), whose lock no other program needs. With
//! an attribute of the changed directory, or of one on the way to the transaction's mount, a commit would wait for
//! its own caller; with one file for all, it would wait for other commits.
//!
//! A request for the length of the value, which getfattr makes first, returns the largest length and begins nothing.
//!
//! All of these run on a thread that may wait, because the end of a transaction needs other requests to this mount.
//! If too many wait already, a call fails with EAGAIN. A user who may set limits on trees may begin and end
//! transactions. docs/transactions-api.md is for programmers.
//!
//! Source: KVFS, thesis section 3.3 (calls for transactions without a change of the kernel; KVFS sets attributes for
//! all three).

use bytes::Bytes;
use varve_vfs::{FsError, Transact};

use super::said::id_in;
use super::trees::check_may_manage;
use super::{Adapter, Call, Served};
use crate::answer::Answer;
use crate::protocol::request::Ioctl;

const BEGIN: u32 = 0x8010_5601;
const COMMIT: u32 = 0x4010_5602;
const ABORT: u32 = 0x4010_5603;
/// The length of the argument.
const TXN_BYTES: usize = 16;
/// The length of what precedes the result of an ioctl: result, flags, and two counts that only unrestricted ioctls
/// have, all 0.
pub(super) const IOCTL_OUT_BYTES: usize = 16;

/// The most digits of an id.
const ID_DIGITS_MAX: u32 = 20;

impl Adapter {
    pub(super) fn ioctl(&self, call: &Call<'_>, ioctl: &Ioctl<'_>) -> Served {
        if let Some(served) = self.flags_ioctl(call, ioctl) {
            return served;
        }
        let what = match ioctl.command {
            BEGIN if ioctl.out_bytes as usize >= TXN_BYTES => {
                Transact::Begin { dir: call.ino, how: String::new() }
            }
            COMMIT => Transact::Commit(id_in(ioctl.brought)?),
            ABORT => Transact::Abort(id_in(ioctl.brought)?),
            _ => return Ok(Answer::Errno(libc::ENOTTY)),
        };
        check_may_manage(call.header)?;
        self.ask(call, move |vfs| {
            let begins = matches!(what, Transact::Begin { .. });
            let id = vfs.transact(what)?;
            let mut body = vec![0; IOCTL_OUT_BYTES];
            if begins {
                body.extend_from_slice(&id.to_ne_bytes());
                body.extend_from_slice(&[0; 8]);
            }
            Ok(Bytes::from(body))
        })
    }

    /// Begins a transaction with the options `how`, for a program that reads the attribute with room for `size`
    /// bytes.
    pub(super) fn begin_by_attribute(&self, call: &mut Call<'_>, how: &[u8], size: u32) -> Served {
        check_may_manage(call.header)?;
        if size == 0 {
            call.reply.size_out(ID_DIGITS_MAX);
            return Ok(Answer::Body);
        }
        if size < ID_DIGITS_MAX {
            return Ok(Answer::Errno(libc::ERANGE));
        }
        let how = std::str::from_utf8(how).map_err(|_| FsError::Invalid("options are text"))?;
        let begin = Transact::Begin { dir: call.ino, how: how.to_owned() };
        self.ask(call, move |vfs| Ok(vfs.transact(begin)?.to_string().into()))
    }

    /// Ends the transaction of the file that the call is about.
    pub(super) fn end_by_attribute(
        &self,
        call: &Call<'_>,
        end: fn(u64) -> Transact,
        value: &[u8],
    ) -> Served {
        check_may_manage(call.header)?;
        let id = self.vfs.controlled(call.ino)?;
        if !value.is_empty() {
            return Err(FsError::Invalid("the file says which transaction ends, not a value"));
        }
        self.ask(call, move |vfs| vfs.transact(end(id)).map(|_| Bytes::new()))
    }
}
