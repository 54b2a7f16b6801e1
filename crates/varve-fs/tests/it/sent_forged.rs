//! Streams that nobody sends: refused with what is wrong about them, and nothing changes.

use bytes::Bytes;
use varve_fs::stream::frame::{Frame, FrameReader, FrameWriter, Header, SentRow};
use varve_fs::stream::{ReceiveError, Received, read_header};
use varve_fs::{FormatOptions, MountOptions, VarveFs};
use varve_schema::{
    Body, CHUNK_BYTES, EntryRow, FileKind, Home, Inode, NameHasher, ParentPointer, ParentRow,
    RowKey, XattrRow, encode_inode_row,
};
use varve_types::InodeId;
use varve_vfs::{Vfs, XattrMode};

use crate::bench::Rows;
use crate::crash::sim_store;
use crate::sent::{receive, sent, source, target};
use crate::sent_files::changed_files;
use crate::snapshots::{open_with, same, view};
use crate::support::{Calls, ROOT};

/// The frames of a stream.
pub(crate) fn frames(mut stream: &[u8]) -> Vec<Frame> {
    let (mut reader, mut frames) = (FrameReader::new(&mut stream).unwrap(), Vec::new());
    while !matches!(frames.last(), Some(Frame::End { .. })) {
        frames.push(reader.next_frame().unwrap());
    }
    frames
}

fn stream_of(frames: &[Frame]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = FrameWriter::new(&mut out).unwrap();
    frames.iter().for_each(|frame| writer.write(frame).unwrap());
    out
}

/// The end behind `frames`.
fn end_of(frames: &[Frame]) -> Frame {
    let (mut rows, mut bytes) = (0, 0);
    for frame in frames {
        match frame {
            Frame::Rows { rows: more, .. } => rows += more.len() as u64,
            Frame::Bytes { bytes: more, .. } => bytes += more.len() as u64,
            _ => {}
        }
    }
    Frame::End { frames: frames.len() as u64, rows, bytes }
}

/// The first version sent files whole that were in the base.
#[test]
fn a_stream_of_the_first_version_with_a_base_is_received() {
    let (fs, one, two) = changed_files(64, false);
    let there = open_with(&target(65, &fs), MountOptions::default());
    receive(&there, &one).unwrap();
    let whole = frames(&sent(&fs, "two", None));
    let of = |wanted: u64| {
        let bytes = whole.iter().filter(move |frame| {
            matches!(frame, Frame::Bytes { ino, .. } | Frame::File { ino, .. } if *ino == wanted)
        });
        bytes.cloned()
    };
    let mut old = Vec::new();
    for frame in frames(&two) {
        match frame {
            Frame::Header(mut header) => {
                header.version = 1;
                old.push(Frame::Header(header));
            }
            Frame::Changed { ino, .. } => old.extend(of(ino)),
            Frame::Rows { .. } => old.push(frame),
            _ => {}
        }
    }
    old.push(end_of(&old));
    let old = stream_of(&old);
    assert!(old.len() > 5 * two.len(), "{} and {}", old.len(), two.len());
    receive(&there, &old).unwrap();
    same(&view(&fs, "two"), &there);
    same(&view(&fs, "one"), &view(&there, "one"));
}

/// Large files that were changed stayed open for ever after a stream that was refused.
#[test]
fn a_stream_that_is_refused_leaves_no_file_open() {
    let (fs, one, two) = changed_files(72, false);
    let env = target(73, &fs);
    let there = open_with(&env, MountOptions::default());
    receive(&there, &one).unwrap();
    let mut wrong = frames(&two);
    wrong.pop();
    wrong.push(Frame::End { frames: 1, rows: 1, bytes: 1 });
    let mut open_files = 0;
    for round in 0..10 {
        let came = receive(&there, &stream_of(&wrong));
        assert!(matches!(came, Err(ReceiveError::Stream(_))), "{came:?}");
        match round {
            0 => open_files = env.open_handles(),
            _ => assert_eq!(env.open_handles(), open_files, "after {round} more"),
        }
    }
    receive(&there, &two).unwrap();
    same(&view(&fs, "two"), &there);
}

/// What a forger makes of good frames is refused, and leaves nothing to go on with.
fn refused(there: &VarveFs, good: &[Frame], why: &str, forge: &dyn Fn(&mut Vec<Frame>)) {
    let mut frames = good.to_vec();
    forge(&mut frames);
    let refused = receive(there, &stream_of(&frames));
    let Err(ReceiveError::Stream(text)) = refused else { panic!("{why}: {refused:?}") };
    assert!(text.contains(why), "{text} instead of {why}");
    assert_eq!(there.interrupted_receipt().unwrap(), None);
}

#[test]
fn forged_changes_of_files_are_refused() {
    let (fs, one, two) = changed_files(61, false);
    let other = target(62, &fs);
    let there = open_with(&other, MountOptions::default());
    receive(&there, &one).unwrap();
    let good = frames(&two);
    let at = |wanted: fn(&Frame) -> bool| good.iter().position(wanted).unwrap();
    let changed = at(|frame| matches!(frame, Frame::Changed { .. }));
    let forged = |why: &str, forge: &dyn Fn(&mut Vec<Frame>)| {
        refused(&there, &good, why, forge);
        same(&view(&fs, "one"), &there);
    };
    forged("in a place where none can be", &|frames| {
        let Frame::Header(header) = &mut frames[0] else { panic!("no header") };
        header.version = 1;
    });
    forged("in a place where none can be", &|frames| {
        frames.insert(changed, frames[changed].clone());
    });
    forged("not as long", &|frames| {
        let Frame::Changed { base_len, .. } = &mut frames[changed] else { panic!() };
        *base_len += 1;
    });
    forged("not of the last row", &|frames| {
        let Frame::Changed { ino, .. } = &mut frames[changed] else { panic!() };
        *ino += 1000;
    });
    // A file of another length whose bytes never come.
    let (begin, end) = {
        let is_other = |at: &usize| {
            let Frame::Changed { ino, base_len } = good[*at] else { return false };
            let is_end =
                |frame: &&Frame| matches!(frame, Frame::File { ino: of, .. } if *of == ino);
            let Some(Frame::File { len, .. }) = good.iter().find(is_end) else { return false };
            *len != base_len
        };
        let begin = (0..good.len()).find(is_other).unwrap();
        let is_end = |frame: &Frame| matches!(frame, Frame::File { .. });
        (begin, begin + good[begin..].iter().position(is_end).unwrap())
    };
    forged("not all of it", &|frames| {
        frames.drain(begin..=end);
        let Some(Frame::End { frames: number, bytes, .. }) = frames.last_mut() else { panic!() };
        *number -= (end + 1 - begin) as u64;
        let is = |frame: &Frame| match frame {
            Frame::Bytes { bytes, .. } => bytes.len() as u64,
            _ => 0,
        };
        *bytes -= good[begin..=end].iter().map(is).sum::<u64>();
    });
    let hole = at(|frame| matches!(frame, Frame::Hole { .. }));
    forged("beyond the end", &|frames| {
        let Frame::Hole { len, .. } = &mut frames[hole] else { panic!() };
        *len = 1 << 40;
    });
    receive(&there, &two).unwrap();
    same(&view(&fs, "two"), &there);
}

/// Inodes that the sender had not made by then may be others here, and what has no name nobody could remove.
#[test]
fn forged_rows_are_refused() {
    let fs = source();
    let (one, two) = (sent(&fs, "one", None), sent(&fs, "two", Some("one")));
    let there = open_with(&target(63, &fs), MountOptions::default());
    receive(&there, &one).unwrap();
    let good = frames(&two);
    let forged = |why: &str, forge: &dyn Fn(&mut Vec<Frame>)| {
        refused(&there, &good, why, forge);
        same(&view(&fs, "one"), &there);
    };
    let Frame::Header(header) = &good[0] else { panic!("no header") };
    let (end, first) = (header.inodes_end, InodeId::new(header.inodes_end));
    let below = |end: u64| format!("its header says below {end}");
    // What the rows are of, and what they speak of.
    let with_end = |frames: &mut Vec<Frame>, end| {
        let Frame::Header(header) = &mut frames[0] else { panic!("no header") };
        header.inodes_end = end;
    };
    forged(&below(2), &|frames| with_end(frames, 2));
    // No store would have ids for files of its own above these.
    let mut far = good.clone();
    with_end(&mut far, 1 << 60);
    let far = receive(&there, &stream_of(&far));
    assert!(matches!(&far, Err(ReceiveError::Refused(..))), "{far:?}");
    assert_eq!(there.interrupted_receipt().unwrap(), None);
    for (space, key) in [(0, RowKey::inode(first)), (1, RowKey::chunk(first, 0))] {
        forged(&below(end), &|frames| {
            let rows = vec![(key.to_bytes().to_vec(), None)];
            frames.insert(1, Frame::Rows { space, rows });
        });
    }
    let metadata = |frames: &[Frame]| -> Vec<(usize, usize)> {
        let rows = frames.iter().enumerate().flat_map(|(at, frame)| match frame {
            Frame::Rows { space: 0, rows } => (0..rows.len()).map(|row| (at, row)).collect(),
            _ => Vec::new(),
        });
        rows.collect()
    };
    let (mut of_inodes, all) = (0, metadata(&good));
    for (at, row) in all {
        let mut frames = good.clone();
        let Frame::Rows { rows, .. } = &mut frames[at] else { panic!("no rows") };
        let key = RowKey::from_bytes(&rows[row].0).unwrap();
        if rows[row].1.is_none() || key != RowKey::inode(InodeId::new(key.prefix())) {
            continue;
        }
        of_inodes += 1;
        refused(&there, &good, "that is", &|frames| {
            let Frame::Rows { rows, .. } = &mut frames[at] else { panic!("no rows") };
            rows[row].0 = RowKey::inode(InodeId::new(end - 1)).to_bytes().to_vec();
        });
    }
    assert!(of_inodes > 1, "{of_inodes} rows of inodes");
    let pairs = |number: u32| {
        let rows = vec![(b"key".to_vec(), Some(b"value".to_vec()))];
        Frame::Rows { space: 3 + number, rows }
    };
    forged("the dictionary number 7, which has no name", &|frames| {
        frames.insert(good.len() - 1, pairs(7));
    });
    forged("out of order", &|frames| frames.insert(1, pairs(0)));
    receive(&there, &two).unwrap();
    same(&view(&fs, "two"), &there);
}

/// A file in the row of its name, as a stream has it.
fn inlined(frames: &[Frame]) -> (InodeId, Bytes, Inode) {
    let rows = frames.iter().flat_map(|frame| match frame {
        Frame::Rows { space: 0, rows } => rows.clone(),
        _ => Vec::new(),
    });
    let files = rows.filter_map(|(key, value)| {
        let row = EntryRow::decode(&value?.into()).ok()?;
        let named = row.names().first()?.clone();
        let Body::Inline(inode) = named.body else { return None };
        Some((InodeId::new(RowKey::from_bytes(&key)?.prefix()), named.name, inode))
    });
    let mut small = files.filter(|(.., inode)| inode.kind == FileKind::Regular && inode.size < 999);
    small.next().unwrap()
}

/// A stream to which rows are added, and who refuses it.
struct Forger {
    fs: VarveFs,
    there: VarveFs,
    good: Vec<Frame>,
    hasher: NameHasher,
}

impl Forger {
    fn new(seed: u64) -> Forger {
        let fs = source();
        let good = frames(&sent(&fs, "one", None));
        let there = open_with(&target(seed, &fs), MountOptions::default());
        let superblock = there.superblock();
        let key = u128::from_str_radix(&superblock.name_hash_key, 16).unwrap();
        let hasher = NameHasher::new(key, superblock.name_hash_bits);
        Forger { fs, there, good, hasher }
    }

    fn refuses(&self, why: &str, space: u32, key: RowKey, value: Vec<u8>) {
        let rows = vec![(key.to_bytes().to_vec(), Some(value))];
        refused(&self.there, &self.good, why, &|frames| {
            frames.insert(1, Frame::Rows { space, rows: rows.clone() });
        });
    }

    fn entry(&self, dir: InodeId, name: &[u8], body: Body) -> (RowKey, Vec<u8>) {
        let mut row = EntryRow::default();
        row.insert(name, body);
        (RowKey::entry(dir, self.hasher.entry(name)), row.encode())
    }

    /// What is good is received after all.
    fn end(self) {
        receive(&self.there, &stream_of(&self.good)).unwrap();
        same(&view(&self.fs, "one"), &self.there);
    }
}

/// Names came that no file can have, such as with slashes, and stayed: nobody could look them up.
#[test]
fn names_that_no_store_holds_are_refused() {
    let forger = Forger::new(66);
    let (hasher, good) = (&forger.hasher, &forger.good);
    let (dir, name, file) = inlined(good);
    let ino = file.ino;
    let with_name = |why: &str, name: &[u8]| {
        let (key, value) = forger.entry(dir, name, Body::Inline(file.clone()));
        forger.refuses(why, 0, key, value);
        let row = ParentRow { pointers: vec![ParentPointer { dir, name: name.to_vec().into() }] };
        forger.refuses(why, 0, RowKey::parent(ino, hasher.parent(dir, name)), row.encode());
    };
    for wrong in [&b"a/b"[..], b"a\0b", b".", b".."] {
        with_name("a name that no file has", wrong);
    }
    let (_, value) = forger.entry(dir, &name, Body::Inline(file.clone()));
    forger.refuses("another hash", 0, RowKey::entry(dir, hasher.entry(b"other")), value);
    let row = ParentRow { pointers: vec![ParentPointer { dir, name: name.clone() }] };
    let misplaced = RowKey::parent(ino, hasher.parent(dir, b"other"));
    forger.refuses("another hash", 0, misplaced, row.encode());
    forger.end();
}

/// Inodes came that no store has: files in the rows of directories, or with ids of the store's own rows.
#[test]
fn inodes_that_no_store_holds_are_refused() {
    let forger = Forger::new(67);
    let (hasher, good) = (&forger.hasher, &forger.good);
    let (dir, name, file) = inlined(good);
    let ino = file.ino;
    let with_inode = |why: &str, inode: Inode| {
        let (key, value) = forger.entry(dir, &name, Body::Inline(inode));
        forger.refuses(why, 0, key, value);
    };
    for id in [0, 2, 15] {
        with_inode("an id that no", Inode { ino: InodeId::new(id), ..file.clone() });
    }
    with_inode("a directory", Inode { ino: InodeId::ROOT, ..file.clone() });
    let home = Some(Home { dir, hash: hasher.parent(dir, &name) });
    for inode in [Inode { nlink: 2, ..file.clone() }, Inode { home, ..file.clone() }] {
        with_inode("several names", inode);
    }
    let directory = good.iter().find_map(|frame| {
        let Frame::Rows { space: 0, rows } = frame else { return None };
        let root = RowKey::inode(InodeId::ROOT).to_bytes();
        let row = rows.iter().find(|(key, _)| *key == root)?.1.clone()?;
        varve_schema::decode_inode_row(&row.into()).ok()
    });
    with_inode("a directory", Inode { ino, nlink: 1, ..directory.unwrap() });
    for id in [5, 15].map(InodeId::new) {
        let row = encode_inode_row(&Inode { ino: id, ..file.clone() });
        forger.refuses("an id that no", 0, RowKey::inode(id), row);
        let (key, value) = forger.entry(id, &name, Body::Inline(file.clone()));
        forger.refuses("an id that no", 0, key, value);
    }
    for ino in [0, 2, 15].map(InodeId::new) {
        let (key, value) =
            forger.entry(dir, &name, Body::Reference { ino, kind: FileKind::Regular });
        forger.refuses("an id that no", 0, key, value);
        forger.refuses("an id that no", 1, RowKey::chunk(ino, 0), vec![1]);
    }
    forger.end();
}

/// Rows of attributes of one inode that are more than it may have, by key.
fn too_many_attributes(hasher: &NameHasher, ino: InodeId) -> Vec<SentRow> {
    let mut rows: Vec<_> = (10..27)
        .map(|i| {
            let (name, mut row) = (format!("user.{i}"), XattrRow::default());
            row.set(name.as_bytes(), &[3; 65_536]);
            let key = RowKey::xattr(ino, hasher.xattr(name.as_bytes()));
            (key.to_bytes().to_vec(), Some(row.encode()))
        })
        .collect();
    rows.sort();
    rows
}

/// Chunks and attributes came unread that nothing can be made of.
#[test]
fn data_that_no_store_holds_is_refused() {
    let forger = Forger::new(68);
    let (hasher, good) = (&forger.hasher, &forger.good);
    let ino = inlined(good).2.ino;
    forger.refuses("a chunk", 1, RowKey::chunk(ino, 0), vec![1; CHUNK_BYTES + 1]);
    forger.refuses("a chunk", 1, RowKey::chunk(ino, 1 << 40), vec![1]);
    forger.refuses("cannot be read", 1, RowKey::xattr(ino, hasher.xattr(b"user.a")), vec![255]);
    let attribute = |name: &[u8]| {
        let mut row = XattrRow::default();
        row.set(name, b"value");
        row.encode()
    };
    for wrong in [&b"a"[..], b"user.", b"user.a\0b"] {
        let key = RowKey::xattr(ino, hasher.xattr(wrong));
        forger.refuses("an attribute that no file has", 1, key, attribute(wrong));
    }
    let key = RowKey::xattr(ino, hasher.xattr(b"user.b"));
    forger.refuses("another hash", 1, key, attribute(b"user.a"));
    // Too many of them, in one frame and in several.
    let mut rows = too_many_attributes(hasher, ino);
    for in_a_frame in [17, 16, 1] {
        refused(&forger.there, good, "more than 1048576 bytes", &|frames| {
            frames.truncate(1);
            let forged = rows.chunks(in_a_frame);
            frames.extend(forged.map(|rows| Frame::Rows { space: 1, rows: rows.to_vec() }));
            frames.push(Frame::End { frames: frames.len() as u64, rows: 17, bytes: 0 });
        });
    }
    // Of the first of two inodes.
    let other = InodeId::new(ino.get() + 1);
    let key = RowKey::xattr(other, hasher.xattr(b"user.a"));
    rows.push((key.to_bytes().to_vec(), Some(attribute(b"user.a"))));
    refused(&forger.there, good, "more than 1048576 bytes", &|frames| {
        frames.insert(1, Frame::Rows { space: 1, rows: rows.clone() });
    });
    forger.end();
}

/// Receives the first `cut` frames, and then the rest of them as if the sender had been asked for it.
fn receive_in_two(there: &VarveFs, frames: &[Frame], cut: usize) -> Result<Received, ReceiveError> {
    let broken = receive(there, &stream_of(&frames[..cut]));
    let Err(ReceiveError::Interrupted(_)) = broken else { return broken };
    let receipt = there.interrupted_receipt().unwrap().unwrap();
    let mut rest = vec![frames[0].clone()];
    let Frame::Header(header) = &mut rest[0] else { panic!("no header") };
    header.from = receipt.position;
    rest.extend_from_slice(&frames[cut..frames.len() - 1]);
    rest.push(end_of(&rest));
    receive(there, &stream_of(&rest))
}

/// Who went on with a receipt asked about the attributes of the inode of the last row, whatever row that was: those of another
/// whose last had come before were never counted.
#[test]
fn too_many_attributes_are_refused_wherever_their_stream_broke_off() {
    let forger = Forger::new(69);
    let ino = inlined(&forger.good).2.ino;
    let rows = too_many_attributes(&forger.hasher, ino);
    let chunk = RowKey::chunk(InodeId::new(ino.get() + 1), 0).to_bytes().to_vec();
    let mut with_chunk = rows.clone();
    with_chunk.push((chunk.clone(), Some(vec![1])));
    let data = |rows: &[SentRow]| Frame::Rows { space: 1, rows: rows.to_vec() };
    let names = Frame::Rows { space: 2, rows: vec![(b"none".to_vec(), None)] };
    let other = too_many_attributes(&forger.hasher, InodeId::new(ino.get() + 2));
    let header = forger.good[0].clone();
    let streams = [
        vec![header.clone(), data(&with_chunk)],
        vec![header.clone(), data(&rows), data(&with_chunk[17..])],
        vec![header.clone(), data(&rows[..9]), data(&with_chunk[9..])],
        vec![header.clone(), data(&rows), names],
        // Out of order.
        vec![header, data(&rows[..9]), data(&other[..1]), data(&rows[9..])],
    ];
    for (n, mut frames) in streams.into_iter().enumerate() {
        frames.push(end_of(&frames));
        for cut in 1..frames.len() {
            let came = receive_in_two(&forger.there, &frames, cut);
            let Err(ReceiveError::Stream(text)) = came else { panic!("{n}, {cut}: {came:?}") };
            assert!(text.contains("more than 1048576 bytes"), "{text}");
            assert_eq!(forger.there.interrupted_receipt().unwrap(), None);
        }
    }
    forger.end();
}

#[test]
fn attributes_of_a_base_count_with_those_that_come() {
    let forger = Forger::new(71);
    let ino = inlined(&forger.good).2.ino;
    let rows = too_many_attributes(&forger.hasher, ino);
    // Behind them are those of another inode.
    let other = too_many_attributes(&forger.hasher, InodeId::new(ino.get() + 2)).remove(0);
    let with = |good: &[Frame], rows: &[SentRow]| {
        let is_later = |frame: &Frame| matches!(frame, Frame::Rows { space: 2.., .. });
        let mut frames = good.to_vec();
        let at = good.iter().position(is_later).unwrap();
        frames.insert(
            at,
            Frame::Rows { space: 1, rows: [rows, std::slice::from_ref(&other)].concat() },
        );
        frames.pop();
        frames.push(end_of(&frames));
        (frames, at)
    };
    receive(&forger.there, &stream_of(&with(&forger.good, &rows[..9]).0)).unwrap();
    let two = frames(&sent(&forger.fs, "two", Some("one")));
    let (all, at) = with(&two, &rows[9..]);
    for cut in at..all.len() {
        let came = receive_in_two(&forger.there, &all, cut);
        let Err(ReceiveError::Stream(text)) = came else { panic!("{cut}: {came:?}") };
        assert!(text.contains("more than 1048576 bytes"), "{text}");
    }
    receive(&forger.there, &stream_of(&with(&two, &rows[9..15]).0)).unwrap();
}

/// An inode that had more attributes already before there was a bound keeps them; a receipt that was gone on with behind other
/// rows of that inode was refused for them.
#[test]
fn attributes_that_were_too_many_before_keep_no_stream_from_going_on() {
    let env = sim_store(70, &FormatOptions::default());
    let fs = open_with(&env, MountOptions::default());
    let ino = fs.mk(ROOT, "file");
    fs.put_at(ino, 0, &[1; 60_000]);
    fs.setxattr(ino, b"user.a", b"value", XattrMode::Set).unwrap();
    let superblock = fs.superblock();
    let key = u128::from_str_radix(&superblock.name_hash_key, 16).unwrap();
    let hasher = NameHasher::new(key, superblock.name_hash_bits);
    fs.close().unwrap();
    let raw = Rows::open(&env);
    for (key, value) in too_many_attributes(&hasher, ino) {
        raw.put(raw.data, RowKey::from_bytes(&key).unwrap(), value.unwrap());
    }
    raw.close();
    let fs = open_with(&env, MountOptions::default());
    fs.create_snapshot("one").unwrap();
    fs.close().unwrap();
    let other = env.power_cut_keep_all();
    let fs = open_with(&env, MountOptions::default());
    fs.put_at(fs.find(ROOT, "file").unwrap().ino, 0, &[2; 60_000]);
    fs.create_snapshot("two").unwrap();
    let good = frames(&sent(&fs, "two", Some("one")));
    let is_data = |frame: &Frame| matches!(frame, Frame::Rows { space: 1, .. });
    assert_eq!(good.iter().filter(|frame| is_data(frame)).count(), 1);
    for cut in 1..good.len() {
        let there = open_with(&other.power_cut_keep_all(), MountOptions::default());
        receive_in_two(&there, &good, cut).unwrap();
        same(&view(&fs, "two"), &there);
    }
}

/// A new store was made of whatever a header said, and could not be opened.
#[test]
fn headers_of_which_no_store_can_be_made_are_refused() {
    let good = frames(&sent(&source(), "one", None));
    let read = |forge: &dyn Fn(&mut Header)| {
        let mut frames = good.clone();
        let Frame::Header(header) = &mut frames[0] else { panic!("no header") };
        forge(header);
        let stream = stream_of(&frames);
        let mut stream = &stream[..];
        read_header(&mut FrameReader::new(&mut stream).unwrap())
    };
    read(&|_| ()).unwrap();
    let forgeries: [&dyn Fn(&mut Header); 10] = [
        &|header| header.name_hash_key = "zz".to_owned(),
        &|header| header.name_hash_key = String::new(),
        &|header| header.name_hash_key = format!("+{:031x}", 7),
        &|header| header.name_hash_bits = 0,
        &|header| header.name_hash_bits = 200,
        &|header| header.large_file_threshold_bytes = 0,
        &|header| header.large_file_threshold_bytes = u64::MAX,
        &|header| header.snapshot.id = "no id".to_owned(),
        &|header| header.snapshot.name = "no/name".to_owned(),
        &|header| header.inodes_end = (1 << 60) + 1,
    ];
    for (n, forge) in forgeries.iter().enumerate() {
        let read = read(forge);
        let Err(ReceiveError::Stream(text)) = read else { panic!("{n}: {read:?}") };
        assert!(text.contains("its header makes no sense"), "{text}");
    }
}
