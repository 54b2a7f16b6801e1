//! Transactions for programs that have nothing but the mount: ioctls on any directory of it.
//!
//! ```text
//! | id u64 | flags u64: 0 |     what all of them bring or take, in the machine's order of bytes
//!
//! begin   _IOR('V', 1, 16 bytes)   a transaction that shows the directory; its id is told
//! commit  _IOW('V', 2, 16 bytes)
//! abort   _IOW('V', 3, 16 bytes)
//! ```
//!
//! An ioctl, as the kernel holds no lock of the directory meanwhile: a commit tells the kernel which names have changed, and
//! for that takes the locks of directories. With extended attributes, KVFS's way, it would wait for its own caller.
//! They are done by a thread that may wait, since ending a transaction takes other requests to this mount.
//!
//! Whoever may set limits on trees may begin and end transactions. docs/transactions-api.md is for those who write programs.
//!
//! Source: KVFS, thesis section 3.3 (calls for transactions without a change of the kernel).

use bytes::Bytes;
use varve_vfs::{FsError, FsResult, Transact};

use super::{Adapter, Answer, Call, Served};
use crate::protocol::request::Ioctl;

const BEGIN: u32 = 0x8010_5601;
const COMMIT: u32 = 0x4010_5602;
const ABORT: u32 = 0x4010_5603;
/// Bytes of what they bring or take.
const TXN_BYTES: usize = 16;
/// What stands before what an ioctl takes: result, flags, and two counts that only unrestricted ones have, all 0.
const IOCTL_OUT_BYTES: usize = 16;

impl Adapter {
    pub(super) fn ioctl(&self, call: &Call<'_>, ioctl: &Ioctl<'_>) -> Served {
        let what = match ioctl.command {
            BEGIN if ioctl.out_bytes as usize >= TXN_BYTES => Transact::Begin(call.ino),
            COMMIT => Transact::Commit(id_in(ioctl.brought)?),
            ABORT => Transact::Abort(id_in(ioctl.brought)?),
            _ => return Ok(Answer::Errno(libc::ENOTTY)),
        };
        super::trees::check_may_manage(call.header.uid)?;
        Ok(self.later_with(call, move |vfs| {
            let id = vfs.transact(what)?;
            let mut body = vec![0; IOCTL_OUT_BYTES];
            if matches!(what, Transact::Begin(_)) {
                body.extend_from_slice(&id.to_ne_bytes());
                body.extend_from_slice(&[0; 8]);
            }
            Ok(Bytes::from(body))
        }))
    }
}

/// The id in what an ioctl brings.
fn id_in(brought: &[u8]) -> FsResult<u64> {
    let wrong = FsError::Invalid("this is no transaction");
    let Some((id, flags)) = brought.split_first_chunk::<8>() else { return Err(wrong) };
    match flags == [0; 8] {
        true => Ok(u64::from_ne_bytes(*id)),
        false => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_ioctl_brings_is_an_id_and_no_flags() {
        let of = |id: u64, flags: u64| [id.to_ne_bytes(), flags.to_ne_bytes()].concat();
        assert_eq!(id_in(&of(77, 0)).unwrap(), 77);
        for wrong in [of(77, 1), of(77, 0)[..15].to_vec(), vec![], [of(1, 0), vec![0]].concat()] {
            assert!(id_in(&wrong).is_err(), "{wrong:?}");
        }
    }
}
