//! Serves file flags by the ioctls of chattr(1) and lsattr(1), which the kernel passes on.
//!
//! ```text
//! get      FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR     | flags u32 |, struct fsxattr
//! set      FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR     the same
//! fsxattr  | flags u32 | extent size u32 | extents u32 | project u32 | copied extent size u32 | 8 bytes |
//! ```
//!
//! All of them carry the whole set of flags, so a program that sets one flag asks for the others first. Flags other
//! than [`FileFlags`] fail with EOPNOTSUPP.
//!
//! Since Linux 5.13 the kernel checks whether the caller may set them. Older kernels leave this to the file system,
//! which looks up the caller's capabilities.
//!
//! Before a file becomes immutable, the kernel writes what programs have changed in mapped memory. That needs other
//! requests to this mount. It cannot write later changes any more, so it has to forget them ([`super::astray`]).
//!
//! Source: `fuse_fileattr_set` in the kernel's fs/fuse/ioctl.c, `fileattr_set_prepare` in its fs/file_attr.c.

use bytes::Bytes;
use varve_types::FileFlags;
use varve_vfs::{Attr, FsError, FsResult};

use super::names::unblocked;
use super::transactions::IOCTL_OUT_BYTES;
use super::{Adapter, Call, Served};
use crate::answer::Answer;
use crate::groups::{has_capability, is_withheld};
use crate::protocol::request::{Header, Ioctl};

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;

const FSXATTR_BYTES: usize = 28;
/// The read-only flag of a struct fsxattr that says that there are extended attributes.
const HAS_XATTRS: u32 = 1 << 31;

/// CAP_FOWNER of capabilities(7).
const CAP_OWNER: u32 = 3;
/// CAP_LINUX_IMMUTABLE.
const CAP_IMMUTABLE: u32 = 9;

/// A flag, with its bit in the first pair of ioctls (`FS_IMMUTABLE_FL` and so on) and in the second
/// (`FS_XFLAG_IMMUTABLE`).
const FLAGS: [(FileFlags, u32, u32); 3] = [
    (FileFlags::IMMUTABLE, 0x10, 0x08),
    (FileFlags::APPEND_ONLY, 0x20, 0x10),
    (FileFlags::NO_DUMP, 0x40, 0x80),
];

/// The form of the argument of an ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Flags,
    Fsxattr,
}

impl Form {
    fn bytes(self) -> usize {
        match self {
            Form::Flags => 4,
            Form::Fsxattr => FSXATTR_BYTES,
        }
    }

    fn raw(self, flags: FileFlags) -> u32 {
        let set = FLAGS.iter().filter(|(flag, ..)| !flags.and(*flag).is_empty());
        set.fold(0, |raw, (_, plain, extended)| {
            raw | if self == Form::Flags { plain } else { extended }
        })
    }

    /// Decodes the flags in the argument of an ioctl.
    fn read(self, brought: &[u8]) -> FsResult<FileFlags> {
        let (raw, rest) =
            brought.split_first_chunk().ok_or(FsError::Invalid("an ioctl that ends too early"))?;
        let raw = u32::from_ne_bytes(*raw);
        let asked = if self == Form::Fsxattr { raw & !HAS_XATTRS } else { raw };
        let set = FLAGS.iter().filter(|(flag, ..)| asked & self.raw(*flag) != 0);
        let flags = set.fold(FileFlags::default(), |flags, (flag, ..)| flags.with(*flag));
        // Programs can read the number of extents but not set it.
        let others = self == Form::Fsxattr
            && rest.iter().enumerate().any(|(at, byte)| *byte != 0 && !(4..8).contains(&at));
        match self.raw(flags) == asked && !others {
            true => Ok(flags),
            false => {
                Err(FsError::NotSupported("other flags than immutable, append-only and no dump"))
            }
        }
    }
}

/// Checks whether the caller may change the flags of a file from `old` to `new`.
fn check_may_set(header: &Header, attr: &Attr, old: FileFlags, new: FileFlags) -> FsResult<()> {
    if is_withheld(header) {
        // A kernel that hides the caller's ids has checked this.
        return Ok(());
    }
    let is_root = header.uid == 0;
    let changed = FileFlags::from_bits(old.bits() ^ new.bits()).unwrap_or_default();
    let owns = is_root || header.uid == attr.uid || has_capability(header.pid, CAP_OWNER);
    let may_fix = is_root || !changed.fixed() || has_capability(header.pid, CAP_IMMUTABLE);
    if owns && may_fix { Ok(()) } else { Err(FsError::NotPermitted) }
}

impl Adapter {
    /// Serves an ioctl about flags; `None` if it is about something else.
    pub(super) fn flags_ioctl(&self, call: &Call<'_>, ioctl: &Ioctl<'_>) -> Option<Served> {
        let (form, sets) = match ioctl.command {
            GET_FLAGS => (Form::Flags, false),
            SET_FLAGS => (Form::Flags, true),
            GET_XATTR => (Form::Fsxattr, false),
            SET_XATTR => (Form::Fsxattr, true),
            _ => return None,
        };
        Some(if sets {
            self.set_flags(call, form, ioctl)
        } else {
            self.get_flags(call, form, ioctl)
        })
    }

    fn get_flags(&self, call: &Call<'_>, form: Form, ioctl: &Ioctl<'_>) -> Served {
        let flags = self.vfs.file_flags(call.ino)?;
        let room = ioctl.out_bytes as usize;
        if !(form.bytes()..=FSXATTR_BYTES).contains(&room) {
            return Err(FsError::Invalid("room for something else than flags"));
        }
        let mut body = vec![0; IOCTL_OUT_BYTES];
        body.extend_from_slice(&form.raw(flags).to_ne_bytes());
        body.resize(IOCTL_OUT_BYTES + room, 0);
        Ok(Answer::Data(Bytes::from(body)))
    }

    fn set_flags(&self, call: &Call<'_>, form: Form, ioctl: &Ioctl<'_>) -> Served {
        let (ino, new) = (call.ino, form.read(ioctl.brought)?);
        let old = self.vfs.file_flags(ino)?;
        check_may_set(call.header, &self.vfs.getattr(ino)?, old, new)?;
        let done = || Bytes::from(vec![0; IOCTL_OUT_BYTES]);
        if !new.immutable() || old.immutable() {
            self.vfs.set_file_flags(ino, new)?;
            self.tell_of_attributes(call.origin, ino);
            return Ok(Answer::Data(done()));
        }
        let notifier = self.notifier(call.origin);
        self.ask(call, move |vfs| {
            let written = notifier.inode_changed(ino);
            unblocked(vfs, || vfs.set_file_flags(ino, new))?;
            if let Err(error) = written.and_then(|()| notifier.attributes_changed(ino)) {
                log::warn!(
                    "the kernel may see inode {ino} as it was before it was immutable: {error}"
                );
            }
            Ok(done())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_they_are_told_and_others_are_refused() {
        for bits in 0..8 {
            let flags = FileFlags::from_bits(bits).unwrap();
            for form in [Form::Flags, Form::Fsxattr] {
                let mut bytes = form.raw(flags).to_ne_bytes().to_vec();
                bytes.resize(form.bytes(), 0);
                assert_eq!(form.read(&bytes).unwrap(), flags);
            }
        }
        for flag in (0..32).map(|bit| 1_u32 << bit) {
            let known = |form: Form| FLAGS.iter().any(|(known, ..)| form.raw(*known) == flag);
            let read = Form::Flags.read(&flag.to_ne_bytes());
            assert_eq!(read.is_ok(), known(Form::Flags), "{flag:#x}");
            let mut extended = flag.to_ne_bytes().to_vec();
            extended.resize(FSXATTR_BYTES, 0);
            let is_fine = known(Form::Fsxattr) || flag == HAS_XATTRS;
            assert_eq!(Form::Fsxattr.read(&extended).is_ok(), is_fine, "{flag:#x}");
        }
        let mut with_project = vec![0; FSXATTR_BYTES];
        with_project[12] = 1;
        assert!(matches!(Form::Fsxattr.read(&with_project), Err(FsError::NotSupported(_))));
        assert!(matches!(Form::Flags.read(&[0; 3]), Err(FsError::Invalid(_))));
    }
}
