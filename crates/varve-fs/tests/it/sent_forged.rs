//! Streams that nobody sends: refused with what is wrong about them, and nothing changes.

use varve_fs::stream::ReceiveError;
use varve_fs::stream::frame::{Frame, FrameReader, FrameWriter};
use varve_fs::{MountOptions, VarveFs};
use varve_schema::RowKey;
use varve_types::InodeId;

use crate::sent::{receive, sent, source, target};
use crate::sent_files::changed_files;
use crate::snapshots::{open_with, same, view};

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
    let (mut rows, mut bytes) = (0, 0);
    for frame in &old {
        match frame {
            Frame::Rows { rows: more, .. } => rows += more.len() as u64,
            Frame::Bytes { bytes: more, .. } => bytes += more.len() as u64,
            _ => {}
        }
    }
    old.push(Frame::End { frames: old.len() as u64, rows, bytes });
    let old = stream_of(&old);
    assert!(old.len() > 5 * two.len(), "{} and {}", old.len(), two.len());
    receive(&there, &old).unwrap();
    same(&view(&fs, "two"), &there);
    same(&view(&fs, "one"), &view(&there, "one"));
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
    forged("its header makes no sense", &|frames| with_end(frames, 1 << 60));
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
