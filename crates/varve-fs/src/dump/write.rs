//! Writes a dump.
//!
//! 1. The key space `meta` is scanned once. A row of an inode of its own gives its line; the names of a
//!    directory go through a [`Sorter`] and come out in the order of their bytes.
//! 2. A directory's line carries its name, which its row leads to; so its name is no line of its own. A file with
//!    one name is a line where that name is; a file with several is a line with its row, and its names are links.
//! 3. Behind each inode follow its extended attributes, by name, and its data, by offset. Dictionaries come last.
//!
//! Invariant: what is written depends on the tree alone, not on the order in which the store keeps it, which a
//! secret key of each store decides.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use varve_engine::{Direction, KeyRange, StoreError, StoreResult, StoreSnapshot};
use varve_env::{Env, OpenMode, ShadowEnv};
use varve_schema::key::{DataRow, MetaRow};
use varve_schema::{
    Body, CHUNK_BYTES, Content, DATA, DecodeError, DictionaryRow, EntryRow, FileKind, Inode,
    Limits, META, ParentRow, Pending, Reader, RowKey, SharedContent, XattrRow, decode_inode_row,
    is_lost_chunk, put_varint,
};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult};

use super::inode::line_of;
use super::line::{
    Base64, DataLine, DictionaryLine, EndLine, Header, InodeLine, LimitsLine, Line, LinkLine,
    PairLine, Text, VERSION, XattrLine,
};
use super::objects::pieces;
use super::{Counts, Steps};
use crate::dictionaries::unreadable;
use crate::epoch::Epoch;
use crate::error;
use crate::error::{invalid, unopened};
use crate::fs::VarveFs;
use crate::fsck::Progress;
use crate::fsck::sorter::{Record, Sorter, SpillPlace};
use crate::options::MountOptions;
use crate::rows::rows_from;

/// A name of a directory, to be sorted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    name: Bytes,
    /// An entry row with only this name.
    row: Bytes,
}

impl Record for Name {
    fn encode(&self, out: &mut Vec<u8>) {
        for part in [&self.name, &self.row] {
            put_varint(out, part.len() as u64);
            out.extend_from_slice(part);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Name, DecodeError> {
        let mut part = || {
            let len = reader.varint()?;
            reader.take(usize::try_from(len).unwrap_or(usize::MAX))
        };
        Ok(Name { name: part()?, row: part()? })
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.row.len()
    }
}

/// The state of a dump.
struct Dump<'a> {
    fs: &'a VarveFs,
    snapshot: &'a dyn StoreSnapshot,
    place: SpillPlace,
    sort_bytes: usize,
    out: &'a mut dyn Write,
    counts: Counts,
    steps: Steps<'a>,
    crc32c: u32,
}

/// Writes the store in `dir`, which nobody may have open, to `out`; takes about `memory_bytes`. `progress` is
/// told of the lines. Where the device has no room for what opening the store writes, that stays in memory.
pub fn dump_store(
    env: Arc<dyn Env>,
    dir: &Path,
    memory_bytes: usize,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(Progress),
) -> StoreResult<Counts> {
    let options = MountOptions { memory_budget_bytes: memory_bytes / 2, ..MountOptions::default() };
    let (env, fs) = match open_settled(&env, dir, &options).and_then(require_counted) {
        Err(StoreError::NoSpace { .. }) => {
            let shadow: Arc<dyn Env> = ShadowEnv::new(env);
            let fs = open_settled(&shadow, dir, &options)?;
            (shadow, fs)
        }
        opened => (env, opened?),
    };
    let dumped = fs.store.snapshot().and_then(|snapshot| {
        let place = SpillPlace { env, dir: dir.to_path_buf() };
        let dump = Dump {
            fs: &fs,
            snapshot: snapshot.as_ref(),
            place,
            sort_bytes: memory_bytes / 4,
            out,
            counts: Counts::default(),
            steps: Steps::begin(progress),
            crc32c: 0,
        };
        dump.run().map_err(invalid)
    });
    let closed = fs.close();
    let counts = dumped?;
    closed.map(|()| counts)
}

/// Opens a store whose clones have all their names, and whose usage is counted.
fn open_settled(env: &Arc<dyn Env>, dir: &Path, options: &MountOptions) -> StoreResult<VarveFs> {
    let fs = VarveFs::open(Arc::clone(env), dir, options.clone())?;
    let settled = match fs.objects.mapped.any_left() {
        Some(ino) => Err(StoreError::Invalid(format!(
            "a program has had the large file of inode {ino} open for writing since a daemon of the store died; dump the store \
             when it has ended"
        ))),
        None => fs.unfold_within(InodeId::ROOT).map_err(unopened(dir)),
    };
    fs.accounts.propagate_all();
    match settled {
        Ok(()) => Ok(fs),
        Err(error) => {
            // What it could not write is what failed.
            drop(fs.close());
            Err(error)
        }
    }
}

/// Fails with `NoSpace`, and closes the store, if some usage could not be counted in all directories above it.
fn require_counted(fs: VarveFs) -> StoreResult<VarveFs> {
    if fs.accounts.marked() == 0 {
        return Ok(fs);
    }
    drop(fs.close());
    Err(StoreError::NoSpace { path: fs.dir().to_path_buf() })
}

impl Dump<'_> {
    fn run(mut self) -> FsResult<Counts> {
        self.header()?;
        let rows = self.snapshot.scan(self.fs.meta, KeyRange::all(), Direction::Forward);
        let mut group: Option<(InodeId, Sorter<Name>)> = None;
        for row in rows.map_err(error::store)? {
            let (bytes, value) = row.map_err(error::store)?;
            let key = RowKey::from_bytes(&bytes).ok_or_else(unsound)?;
            if let Some((dir, names)) = group.take_if(|(dir, _)| dir.get() != key.prefix()) {
                self.names(dir, names)?;
            }
            let MetaRow::Entry(dir, _) = key.meta_kind() else {
                self.row(key, &value)?;
                continue;
            };
            let (_, names) =
                group.get_or_insert_with(|| (dir, Sorter::new(&self.place, self.sort_bytes)));
            let row =
                EntryRow::decode(&value).map_err(|cause| error::unreadable(META, key, cause))?;
            for named in row.names() {
                let mut alone = EntryRow::default();
                alone.insert(&named.name, named.body.clone());
                names.push(Name { name: named.name.clone(), row: alone.encode().into() })?;
            }
        }
        if let Some((dir, names)) = group {
            self.names(dir, names)?;
        }
        self.dictionaries()?;
        self.end()
    }

    fn header(&mut self) -> FsResult<()> {
        let superblock = &self.fs.superblock;
        let design = serde_json::from_value(serde_json::json!(superblock.design));
        let unprintable = |error| FsError::Storage(format!("cannot write the design: {error}"));
        self.line(&Line::VarveDump(Header {
            version: VERSION,
            large_file_threshold_bytes: superblock.large_file_threshold_bytes,
            name_hash_bits: superblock.name_hash_bits,
            compression: superblock.compression,
            design: design.map_err(unprintable)?,
            next_inode: self.fs.ids.next(),
        }))
    }

    fn end(mut self) -> FsResult<Counts> {
        let counts = self.counts;
        self.line(&Line::End(EndLine {
            lines: counts.lines,
            inodes: counts.inodes,
            names: counts.names,
            crc32c: format!("{:08x}", self.crc32c),
        }))?;
        self.out.flush().map_err(|error| write_error(&error))?;
        Ok(counts)
    }

    /// A row of `meta` that holds no names.
    fn row(&mut self, key: RowKey, value: &Bytes) -> FsResult<()> {
        let unreadable = |cause| error::unreadable(META, key, cause);
        match key.meta_kind() {
            // Everything was unfolded, and what borrows its bytes has a line like all others.
            MetaRow::CloneReference(..) => Ok(()),
            MetaRow::Bookkeeping | MetaRow::Mark(_) | MetaRow::Parent(..) => Ok(()),
            MetaRow::Pending(_) => match Pending::decode(value).map_err(unreadable)? {
                // Its file could not be removed yet; nothing of the tree leads to it.
                Pending::ObjectDelete => Ok(()),
                _ => Err(unsound()),
            },
            MetaRow::Limits(dir) => {
                let Limits { bytes, inodes } = Limits::decode(value).map_err(unreadable)?;
                self.line(&Line::Limits(LimitsLine { dir: dir.get(), bytes, inodes }))
            }
            MetaRow::Inode(_) => {
                let inode = decode_inode_row(value).map_err(unreadable)?;
                self.own_row(&inode)
            }
            MetaRow::Entry(..) | MetaRow::CloneRemap(..) | MetaRow::Unknown => Err(unsound()),
        }
    }

    fn own_row(&mut self, inode: &Inode) -> FsResult<()> {
        let Content::Directory(info) = &inode.content else {
            return match (inode.home, inode.nlink) {
                (Some(_), 1) => Ok(()),
                (Some(home), 2..) => self.inode(inode, home.dir, None),
                _ => Err(unsound()),
            };
        };
        if !info.pending.is_zero() {
            return Err(unsound());
        }
        let Some(suffix) = info.suffix else {
            return self.inode(inode, info.parent, None);
        };
        let key = RowKey::entry(info.parent, suffix);
        let value = self.get(self.fs.meta, key)?.ok_or_else(unsound)?;
        let row = EntryRow::decode(&value).map_err(|cause| error::unreadable(META, key, cause))?;
        let mut names = row.names().iter();
        let named = names.find(|named| named.body.ino() == inode.ino).ok_or_else(unsound)?;
        self.inode(inode, info.parent, Some(&named.name))
    }

    fn get(&self, keyspace: KeyspaceId, key: RowKey) -> FsResult<Option<Bytes>> {
        self.snapshot.get(keyspace, &key.to_bytes()).map_err(error::store)
    }

    /// The names of a directory that are not those of directories.
    fn names(&mut self, dir: InodeId, names: Sorter<Name>) -> FsResult<()> {
        let names = names.finish()?;
        for name in names.iter()? {
            let Name { name, row } = name?;
            let row = EntryRow::decode(&row).map_err(|_| unsound())?;
            match row.names().first().map(|named| &named.body) {
                Some(Body::Inline(inode)) => self.inode(inode, dir, Some(&name))?,
                Some(Body::Reference { kind: FileKind::Directory, .. }) => {}
                Some(Body::Reference { ino, kind }) => {
                    let key = RowKey::inode(*ino);
                    let value = self.get(self.fs.meta, key)?.ok_or_else(unsound)?;
                    let inode = decode_inode_row(&value)
                        .map_err(|cause| error::unreadable(META, key, cause))?;
                    if inode.nlink == 1 {
                        self.inode(&inode, dir, Some(&name))?;
                        continue;
                    }
                    self.counts.names += 1;
                    let (ino, parent, kind) = (ino.get(), dir.get(), (*kind).into());
                    let name = Text(name.to_vec());
                    self.line(&Line::Link(LinkLine { ino, kind, parent, name }))?;
                }
                None => return Err(unsound()),
            }
        }
        Ok(())
    }

    /// An inode and all that belongs to it.
    fn inode(&mut self, inode: &Inode, parent: InodeId, name: Option<&Bytes>) -> FsResult<()> {
        self.counts.inodes += 1;
        self.counts.names += u64::from(name.is_some());
        let xattrs = if inode.has_xattrs { self.xattr_names(inode.ino)? } else { Vec::new() };
        let text = |name: &Bytes| Text(name.to_vec());
        let home = match (name, &inode.content) {
            (Some(_), _) | (None, Content::Directory(_)) => None,
            (None, _) => Some(text(&self.home(inode.ino, parent)?)),
        };
        let (name, xattrs_len) = (name.map(text), xattrs.len() as u32);
        let line = InodeLine { name, home, xattrs: xattrs_len, ..line_of(inode, parent) };
        self.steps.inode(&line);
        self.line(&Line::Inode(line))?;
        for name in xattrs {
            self.xattr(inode.ino, name)?;
        }
        match inode.content {
            Content::Chunks => self.chunks(inode.ino),
            Content::Shared(borrowed) => self.lent(inode, borrowed),
            Content::Object { dirty: true, .. } => Err(unsound()),
            Content::Object { .. } => self.object(inode),
            _ => Ok(()),
        }
    }

    /// The first of the names of `ino` in `dir`.
    fn home(&self, ino: InodeId, dir: InodeId) -> FsResult<Bytes> {
        let range = rows_from(RowKey::parent(ino, 0));
        let rows = self.snapshot.scan(self.fs.meta, range, Direction::Forward);
        let mut first: Option<Bytes> = None;
        for row in rows.map_err(error::store)? {
            let (bytes, value) = row.map_err(error::store)?;
            let key = RowKey::from_bytes(&bytes).ok_or_else(unsound)?;
            let row =
                ParentRow::decode(&value).map_err(|cause| error::unreadable(META, key, cause))?;
            let names = row.pointers.iter().filter(|at| at.dir == dir).map(|at| &at.name);
            first = first.iter().chain(names).min().map(|name| Bytes::copy_from_slice(name));
        }
        first.ok_or_else(unsound)
    }

    fn xattr_names(&self, ino: InodeId) -> FsResult<Vec<Bytes>> {
        let range = rows_from(RowKey::xattr(ino, 0));
        let mut names = Vec::new();
        let rows = self.snapshot.scan(self.fs.data, range, Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (bytes, value) = row.map_err(error::store)?;
            let key = RowKey::from_bytes(&bytes).ok_or_else(unsound)?;
            let row =
                XattrRow::decode(&value).map_err(|cause| error::unreadable(DATA, key, cause))?;
            names.extend(row.attrs.into_iter().map(|attr| Bytes::copy_from_slice(&attr.name)));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn xattr(&mut self, ino: InodeId, name: Bytes) -> FsResult<()> {
        let key = RowKey::xattr(ino, self.fs.hasher.xattr(&name));
        let value = self.get(self.fs.data, key)?.ok_or_else(unsound)?;
        let row = XattrRow::decode(&value).map_err(|cause| error::unreadable(DATA, key, cause))?;
        let attr = row.get(&name).ok_or_else(unsound)?;
        let (name, value) = (Text(name.to_vec()), Base64(attr.value.to_vec()));
        self.line(&Line::Xattr(XattrLine { ino: ino.get(), name, value }))
    }

    fn chunks(&mut self, ino: InodeId) -> FsResult<()> {
        let range = KeyRange::prefix(&RowKey::prefix_bytes(ino));
        let rows = self.snapshot.scan(self.fs.data, range, Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (bytes, value) = row.map_err(error::store)?;
            let key = RowKey::from_bytes(&bytes).ok_or_else(unsound)?;
            let DataRow::Chunk(_, index) = key.data_kind() else { break };
            if is_lost_chunk(&value) {
                return Err(error::lost_chunk(ino, index));
            }
            self.data(ino, index * CHUNK_BYTES as u64, &value)?;
        }
        Ok(())
    }

    /// The bytes of a file that are with another.
    fn lent(&mut self, inode: &Inode, borrowed: SharedContent) -> FsResult<()> {
        let from = self.fs.sources()?.open(Epoch::of(borrowed.source))?;
        if borrowed.blocks.is_some() {
            let object = from.objects.open(borrowed.ino, OpenMode::Read)?;
            let mut take = |at, bytes: &[u8]| self.data(inode.ino, at, bytes);
            return pieces(&from.objects, borrowed.ino, object.as_ref(), inode.size, &mut take);
        }
        for index in 0..inode.size.div_ceil(CHUNK_BYTES as u64) {
            if let Some(chunk) = from.chunk(borrowed.ino, index)? {
                self.data(inode.ino, index * CHUNK_BYTES as u64, &chunk)?;
            }
        }
        Ok(())
    }

    fn object(&mut self, inode: &Inode) -> FsResult<()> {
        let fs = self.fs;
        let object = fs.objects.open(inode.ino, OpenMode::Read)?;
        let mut take = |at, bytes: &[u8]| self.data(inode.ino, at, bytes);
        pieces(&fs.objects, inode.ino, object.as_ref(), inode.size, &mut take)
    }

    fn dictionaries(&mut self) -> FsResult<()> {
        let names = self.fs.dictionaries().names();
        let rows = self.snapshot.scan(names, KeyRange::all(), Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (name, value) = row.map_err(error::store)?;
            let row = DictionaryRow::decode(&value).map_err(|e| unreadable(&name, &e))?;
            if row.going {
                continue;
            }
            self.line(&Line::Dictionary(DictionaryLine { name: Text(name.to_vec()) }))?;
            let pairs = self.fs.dictionaries().pairs(row)?;
            let pairs = self.snapshot.scan(pairs, KeyRange::all(), Direction::Forward);
            for pair in pairs.map_err(error::store)? {
                let (key, value) = pair.map_err(error::store)?;
                let (key, value) = (Text(key.to_vec()), Base64(value.to_vec()));
                self.line(&Line::Pair(PairLine { key, value }))?;
            }
        }
        Ok(())
    }

    fn data(&mut self, ino: InodeId, at: u64, bytes: &[u8]) -> FsResult<()> {
        let data = Base64(bytes.to_vec());
        self.line(&Line::Data(DataLine { ino: ino.get(), at, data }))
    }

    fn line(&mut self, line: &Line) -> FsResult<()> {
        let bytes = line
            .print()
            .map_err(|error| FsError::Storage(format!("cannot write a line: {error}")))?;
        self.out.write_all(&bytes).map_err(|error| write_error(&error))?;
        self.crc32c = crc32c::crc32c_append(self.crc32c, &bytes);
        self.counts.lines += 1;
        self.steps.line(self.counts);
        Ok(())
    }
}

/// The rows contradict each other, which only a check can put in words.
fn unsound() -> FsError {
    FsError::Storage(
        "the store's rows contradict each other; run `varve fsck`, and `varve fsck --repair` if it finds something"
            .to_owned(),
    )
}

fn write_error(error: &std::io::Error) -> FsError {
    FsError::Storage(format!("cannot write the dump: {error}; what was written is incomplete"))
}
