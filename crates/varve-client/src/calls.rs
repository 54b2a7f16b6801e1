//! [`Vfs`] for [`Client`]: every call is a request.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use varve_types::{FileFlags, FileName, InodeId};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Caller, DirEntry, Entry, FileType, FsError, FsResult, Handle,
    Keep, OpenFlags, Opened, Position, RenameMode, SeekFrom, SetAttr, SetIdTaken, StatFs, Transact,
    TreeLimits, TreeQuota, TreeUsage, Vfs, Written, XattrMode,
};
use varve_wire::answer::Listed;
use varve_wire::request;
use varve_wire::{Answer, DATA_BYTES_MAX, Node, Request, attr};

use crate::client::Client;
use crate::leases::Sent;
use crate::transport::{CallError, Received};

/// The most bytes of a listing that one request asks for.
const LISTING_BYTES_MAX: u32 = 64 << 10;

impl From<CallError> for FsError {
    fn from(error: CallError) -> FsError {
        FsError::Storage(match error {
            CallError::Ending => "the mount ends".to_owned(),
            CallError::Refused(reason) => {
                format!("the server does not let this mount in: {reason}")
            }
            CallError::TimedOut(why) => why,
        })
    }
}

/// An answer that was not expected.
fn unexpected(answer: &Answer) -> FsError {
    FsError::Storage(format!("the server answers something else than was asked for: {answer:?}"))
}

/// A successful answer.
struct Answered {
    answer: Answer,
    received: Received,
    sent: Sent,
}

impl Client {
    fn node(&self, ino: InodeId) -> Node {
        self.inner.nodes.node(ino)
    }

    fn ask(&self, request: &Request<'_>, data: &[u8]) -> FsResult<Answered> {
        let sent = self.inner.leases.sends();
        let received = self.inner.transport.call(&self.inner, request, data)?;
        let answer = received.answer().map_err(|error| FsError::Storage(error.to_string()))?;
        match answer {
            Answer::Failed(failure) => Err(failure.into()),
            answer => Ok(Answered { answer, received, sent }),
        }
    }

    fn done(&self, request: &Request<'_>, data: &[u8]) -> FsResult<()> {
        match self.ask(request, data)?.answer {
            Answer::Done => Ok(()),
            answer => Err(unexpected(&answer)),
        }
    }

    fn data(&self, request: &Request<'_>) -> FsResult<Bytes> {
        let Answered { answer, received, .. } = self.ask(request, &[])?;
        match answer {
            Answer::Done => Ok(received.into_data()),
            answer => Err(unexpected(&answer)),
        }
    }

    fn number(&self, request: &Request<'_>) -> FsResult<u64> {
        match self.ask(request, &[])?.answer {
            Answer::Number(number) => Ok(number),
            answer => Err(unexpected(&answer)),
        }
    }

    /// Returns attributes, and for how long they may be kept.
    fn attr(&self, attr: &attr::Attr, sent: Sent) -> FsResult<Attr> {
        let keep = self.inner.leases.left(sent, attr.keep_ms);
        let attr = attr.get().ok_or_else(|| FsError::Storage("an unknown type of file".into()))?;
        Ok(Attr { keep: Keep::For(keep), ..attr })
    }

    /// Returns for how long a name may be kept.
    fn keep_name(&self, sent: Sent, keep_ms: u32) -> Keep {
        match self.inner.keeps_names.load(Ordering::Relaxed) {
            true => Keep::For(self.inner.leases.left(sent, keep_ms)),
            false => Keep::Never,
        }
    }

    /// Counts the lookup of an entry.
    fn found(&self, entry: &attr::Entry, sent: Sent) -> FsResult<Entry> {
        let attr = self.attr(&entry.attr, sent)?;
        self.inner.nodes.note(entry.attr.ino, entry.place);
        let keep = self.keep_name(sent, entry.keep_ms);
        Ok(Entry { attr, keep })
    }

    fn entry(&self, request: &Request<'_>, data: &[u8]) -> FsResult<Entry> {
        let Answered { answer, sent, .. } = self.ask(request, data)?;
        match answer {
            Answer::Entry(entry) => self.found(&entry, sent),
            answer => Err(unexpected(&answer)),
        }
    }

    fn attributes(&self, request: &Request<'_>) -> FsResult<Attr> {
        let Answered { answer, sent, .. } = self.ask(request, &[])?;
        match answer {
            Answer::Attr(attr) => self.attr(&attr, sent),
            answer => Err(unexpected(&answer)),
        }
    }

    fn created(
        &self,
        request: &Request<'_>,
        file: u64,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let Answered { answer, sent, .. } = self.ask(request, &[])?;
        let Answer::Created(entry, opened) = answer else { return Err(unexpected(&answer)) };
        let entry = self.found(&entry, sent)?;
        Ok((entry, self.opened(file, entry.attr.ino, flags, opened.reread)))
    }

    fn opened(&self, file: u64, ino: InodeId, flags: OpenFlags, reread: bool) -> Opened {
        self.inner.files.opened(file, ino, flags);
        Opened { handle: Handle(file), passthrough: false, reread }
    }

    fn position(&self, at: Position) -> request::Position {
        request::Position { node: self.node(at.ino), file: at.handle.0, offset: at.offset }
    }

    fn write_at(
        &self,
        (ino, handle): (InodeId, Handle),
        offset: u64,
        append: bool,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        let data = &data[..data.len().min(DATA_BYTES_MAX)];
        let node = self.node(ino);
        let request = Request::Write { node, file: handle.0, offset, append, kill_set_id };
        match self.ask(&request, data)?.answer {
            Answer::Written { offset, bytes, set_id } => {
                let set_id = match set_id {
                    0 => SetIdTaken::None,
                    1 => SetIdTaken::All,
                    _ => SetIdTaken::AllButGroup,
                };
                Ok(Written { offset, bytes: bytes as usize, set_id })
            }
            answer => Err(unexpected(&answer)),
        }
    }

    /// Asks the server about the whole store. Question and answer are in an encoding that only the host of the server knows.
    pub fn ask_host(&self, question: &[u8]) -> FsResult<Vec<u8>> {
        let number = self.inner.questions.fetch_add(1, Ordering::Relaxed);
        let mut told = Vec::new();
        let mut request = Request::Ask { question: number };
        let mut data = question;
        loop {
            let Answered { answer, received, .. } = self.ask(&request, data)?;
            let Answer::Number(length) = answer else { return Err(unexpected(&answer)) };
            let part = received.data();
            told.extend_from_slice(part);
            if told.len() as u64 >= length {
                return Ok(told);
            }
            if part.is_empty() {
                return Err(FsError::Storage("the server has lost its answer: ask again".into()));
            }
            request = Request::AskRest { question: number, offset: told.len() as u64 };
            data = &[];
        }
    }

    fn quotas_by(&self, ino: InodeId, below: bool) -> FsResult<Vec<TreeQuota>> {
        match self.ask(&Request::Quotas { node: self.node(ino), below }, &[])?.answer {
            Answer::Quotas(quotas) => Ok(quotas
                .into_iter()
                .map(|quota| TreeQuota {
                    path: quota.path,
                    limits: TreeLimits { bytes: quota.bytes, inodes: quota.inodes },
                    usage: usage(quota.usage),
                })
                .collect()),
            answer => Err(unexpected(&answer)),
        }
    }
}

fn usage([bytes, files, dirs]: [u64; 3]) -> TreeUsage {
    TreeUsage { bytes, files, dirs }
}

impl Vfs for Client {
    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        self.entry(&Request::Lookup { parent: self.node(parent), name: name.as_bytes() }, &[])
    }

    fn lookup_parent(&self, dir: InodeId) -> FsResult<Entry> {
        self.entry(&Request::LookupParent { dir: self.node(dir) }, &[])
    }

    fn lookup_inode(&self, ino: InodeId) -> FsResult<Entry> {
        self.entry(&Request::LookupInode { ino: ino.get() }, &[])
    }

    fn follows_answers(&self) -> bool {
        true
    }

    fn delivered(&self) {
        self.inner.leases.delivered();
    }

    fn forget(&self, ino: InodeId, lookups: u64) {
        self.inner.nodes.forget(ino, lookups);
    }

    fn getattr(&self, ino: InodeId) -> FsResult<Attr> {
        self.attributes(&Request::Getattr { node: self.node(ino) })
    }

    fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr> {
        let (caller, node) = (caller.into(), self.node(ino));
        self.attributes(&Request::Setattr { caller, node, set: set.into() })
    }

    fn readlink(&self, ino: InodeId) -> FsResult<Bytes> {
        self.data(&Request::Readlink { node: self.node(ino) })
    }

    fn mknod(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        mode: u32,
        rdev: u32,
    ) -> FsResult<Entry> {
        let (caller, parent, name) = (caller.into(), self.node(parent), name.as_bytes());
        self.entry(&Request::Mknod { caller, parent, name, mode, rdev }, &[])
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
    ) -> FsResult<Entry> {
        let (caller, parent, name) = (caller.into(), self.node(parent), name.as_bytes());
        self.entry(&Request::Mkdir { caller, parent, name, perm }, &[])
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        target: &[u8],
    ) -> FsResult<Entry> {
        let (caller, parent, name) = (caller.into(), self.node(parent), name.as_bytes());
        self.entry(&Request::Symlink { caller, parent, name }, target)
    }

    fn link(&self, ino: InodeId, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        let (node, parent, name) = (self.node(ino), self.node(parent), name.as_bytes());
        self.entry(&Request::Link { node, parent, name }, &[])
    }

    fn unlink(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        self.done(&Request::Unlink { parent: self.node(parent), name: name.as_bytes() }, &[])
    }

    fn rmdir(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        self.done(&Request::Rmdir { parent: self.node(parent), name: name.as_bytes() }, &[])
    }

    fn rename(
        &self,
        parent: InodeId,
        name: FileName<'_>,
        new_parent: InodeId,
        new_name: FileName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        let request = Request::Rename {
            parent: self.node(parent),
            name: name.as_bytes(),
            new_parent: self.node(new_parent),
            new_name: new_name.as_bytes(),
            mode: mode.into(),
        };
        self.done(&request, &[])
    }

    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let file = self.inner.files.number();
        let request = Request::Create {
            caller: caller.into(),
            parent: self.node(parent),
            name: name.as_bytes(),
            perm,
            flags: flags.into(),
            file,
        };
        match self.created(&request, file, flags) {
            Err(FsError::Exists) if !flags.exclusive => {
                let entry = self.lookup(parent, name)?;
                let ino = entry.attr.ino;
                let opened = self.open(ino, flags).inspect_err(|_| self.forget(ino, 1))?;
                let attr = if flags.truncate { self.getattr(ino)? } else { entry.attr };
                Ok((Entry { attr, ..entry }, opened))
            }
            made => made,
        }
    }

    fn tmpfile(
        &self,
        caller: Caller,
        parent: InodeId,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let file = self.inner.files.number();
        let (caller, parent) = (caller.into(), self.node(parent));
        let request = Request::Tmpfile { caller, parent, perm, flags: flags.into(), file };
        self.created(&request, file, flags)
    }

    fn open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened> {
        let file = self.inner.files.number();
        let node = self.node(ino);
        let request = Request::Open { node, flags: flags.into(), file, again: false };
        match self.ask(&request, &[])?.answer {
            Answer::Opened(opened) => Ok(self.opened(file, ino, flags, opened.reread)),
            Answer::OpenedAt(opened, place) => {
                self.inner.nodes.moved(ino, place);
                Ok(self.opened(file, ino, flags, opened.reread))
            }
            answer => Err(unexpected(&answer)),
        }
    }

    fn with_passthrough(
        &self,
        _handle: Handle,
        _take: &mut dyn FnMut(BorrowedFd<'_>),
    ) -> FsResult<()> {
        Err(FsError::NotSupported("files below that the kernel reads itself"))
    }

    fn read(&self, ino: InodeId, handle: Handle, offset: u64, len: usize) -> FsResult<Bytes> {
        let length = u32::try_from(len.min(DATA_BYTES_MAX)).unwrap_or(u32::MAX);
        self.data(&Request::Read { node: self.node(ino), file: handle.0, offset, length })
    }

    fn write(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        self.write_at((ino, handle), offset, false, data, kill_set_id)
    }

    fn append(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<Written> {
        self.write_at((ino, handle), offset, true, data, kill_set_id)
    }

    fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()> {
        self.inner.files.released(handle.0);
        // Nobody is told of an error here.
        let request = Request::Release { node: self.node(ino), file: handle.0 };
        Ok(self.inner.transport.send(&self.inner, &request)?)
    }

    fn fsync(&self, ino: InodeId, handle: Handle, data_only: bool) -> FsResult<()> {
        self.done(&Request::Fsync { node: self.node(ino), file: handle.0, data_only }, &[])
    }

    fn fsync_dir(&self, ino: InodeId) -> FsResult<()> {
        self.done(&Request::FsyncDir { node: self.node(ino) }, &[])
    }

    fn sync(&self) -> FsResult<()> {
        self.done(&Request::Sync, &[])
    }

    fn readdir(
        &self,
        ino: InodeId,
        mut cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        let wrong = || FsError::Storage("the server sends a listing that cannot be read".into());
        loop {
            let node = self.node(ino);
            let request = Request::Readdir { node, cookie, with_attr, bytes: LISTING_BYTES_MAX };
            let Answered { answer, received, sent } = self.ask(&request, &[])?;
            let Answer::Listed { names, is_end } = answer else { return Err(unexpected(&answer)) };
            let mut data = received.data();
            for _ in 0..names {
                let (listed, rest) =
                    postcard::take_from_bytes::<Listed<'_>>(data).map_err(|_| wrong())?;
                data = rest;
                let found = match listed.found {
                    Some(found) => Some((self.attr(&found.attr, sent)?, found)),
                    None => None,
                };
                let entry = DirEntry {
                    ino: InodeId::new(listed.ino),
                    kind: FileType::from_mode(listed.kind).ok_or_else(wrong)?,
                    name: listed.name,
                    cookie: listed.cookie,
                    attr: found.map(|(attr, _)| attr),
                    keep: found
                        .map_or(Keep::Never, |(_, found)| self.keep_name(sent, found.keep_ms)),
                };
                if !emit(&entry) {
                    return Ok(());
                }
                if let Some((_, found)) = found {
                    self.inner.nodes.note(found.attr.ino, found.place);
                }
                cookie = listed.cookie;
            }
            if is_end {
                return Ok(());
            }
        }
    }

    fn statfs(&self) -> FsResult<StatFs> {
        match self.ask(&Request::Statfs, &[])?.answer {
            Answer::StatFs([block, blocks, free, available, files, files_free, name]) => {
                Ok(StatFs {
                    block_bytes: u32::try_from(block).unwrap_or(4096),
                    blocks,
                    blocks_free: free,
                    blocks_available: available,
                    files,
                    files_free,
                    name_bytes_max: u32::try_from(name).unwrap_or(255),
                })
            }
            answer => Err(unexpected(&answer)),
        }
    }

    fn access(
        &self,
        caller: Caller,
        groups: &[u32],
        ino: InodeId,
        mode: AccessMode,
    ) -> FsResult<()> {
        let rights = u8::from(mode.read) << 2 | u8::from(mode.write) << 1 | u8::from(mode.execute);
        let (caller, node, groups) = (caller.into(), self.node(ino), groups.to_vec());
        self.done(&Request::Access { caller, groups, node, rights }, &[])
    }

    fn fallocate(
        &self,
        ino: InodeId,
        handle: Handle,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<()> {
        let (node, file, mode) = (self.node(ino), handle.0, mode.into());
        self.done(&Request::Fallocate { node, file, mode, offset, length: len }, &[])
    }

    fn copy_range(&self, from: Position, to: Position, len: u64) -> FsResult<u64> {
        let (from, to) = (self.position(from), self.position(to));
        self.number(&Request::CopyRange { from, to, length: len })
    }

    fn file_flags(&self, ino: InodeId) -> FsResult<FileFlags> {
        let bits = self.number(&Request::FileFlags { node: self.node(ino) })?;
        let flags = u8::try_from(bits).ok().and_then(FileFlags::from_bits);
        flags.ok_or_else(|| FsError::Storage("the server sends unknown flags".into()))
    }

    fn set_file_flags(&self, ino: InodeId, flags: FileFlags) -> FsResult<()> {
        self.done(&Request::SetFileFlags { node: self.node(ino), flags: flags.bits() }, &[])
    }

    fn lseek(&self, ino: InodeId, handle: Handle, offset: u64, what: SeekFrom) -> FsResult<u64> {
        let hole = what == SeekFrom::Hole;
        self.number(&Request::Lseek { node: self.node(ino), file: handle.0, offset, hole })
    }

    fn getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes> {
        self.data(&Request::Getxattr { node: self.node(ino), name })
    }

    fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> FsResult<()> {
        let (node, mode) = (self.node(ino), mode.into());
        self.done(&Request::Setxattr { node, name, mode }, value)
    }

    fn listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>> {
        Ok(self.data(&Request::Listxattr { node: self.node(ino) })?.into())
    }

    fn removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()> {
        self.done(&Request::Removexattr { node: self.node(ino), name }, &[])
    }

    fn clone_tree(
        &self,
        dir: InodeId,
        old_name: FileName<'_>,
        parent: InodeId,
        name: FileName<'_>,
    ) -> FsResult<Entry> {
        let request = Request::CloneTree {
            dir: self.node(dir),
            old_name: old_name.as_bytes(),
            parent: self.node(parent),
            name: name.as_bytes(),
        };
        self.entry(&request, &[])
    }

    fn is_awaited(&self, ino: InodeId) -> bool {
        self.inner.within.get().is_some_and(|within| within.is_awaited(ino))
    }

    fn is_fleeting(&self, ino: InodeId) -> bool {
        self.inner.within.get().is_some_and(|within| within.is_fleeting(ino))
    }

    fn arrive(&self, ino: InodeId) -> FsResult<()> {
        let within = self.inner.within.get();
        within.ok_or(FsError::NotSupported("views by this mount"))?.arrive(ino)
    }

    fn transact(&self, what: Transact) -> FsResult<u64> {
        let within = self.inner.within.get();
        within.ok_or(FsError::NotSupported("transactions by this mount"))?.transact(what)
    }

    fn controlled(&self, ino: InodeId) -> FsResult<u64> {
        let within = self.inner.within.get();
        let within = within.ok_or(FsError::NotSupported("the end of a transaction by this file"));
        within?.controlled(ino)
    }

    /// An absent name may be made by another client.
    fn may_appear(&self, _parent: InodeId, _name: FileName<'_>) -> bool {
        true
    }

    fn usage(&self, ino: InodeId) -> FsResult<TreeUsage> {
        match self.ask(&Request::Usage { node: self.node(ino) }, &[])?.answer {
            Answer::Usage(counts) => Ok(usage(counts)),
            answer => Err(unexpected(&answer)),
        }
    }

    fn set_limits(&self, ino: InodeId, TreeLimits { bytes, inodes }: TreeLimits) -> FsResult<()> {
        self.done(&Request::SetLimits { node: self.node(ino), bytes, inodes }, &[])
    }

    fn quotas(&self, ino: InodeId) -> FsResult<Vec<TreeQuota>> {
        self.quotas_by(ino, true)
    }

    fn quotas_of(&self, ino: InodeId) -> FsResult<Vec<TreeQuota>> {
        self.quotas_by(ino, false)
    }

    fn status_json(&self) -> String {
        match self.data(&Request::Status) {
            Ok(json) => String::from_utf8_lossy(&json).into_owned(),
            Err(error) => format!("{{\"error\":{:?}}}", error.to_string()),
        }
    }
}
