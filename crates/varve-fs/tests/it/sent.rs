//! Snapshots sent from one store to another: the same trees, also where the stream or the machine broke off.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::fsck::Finding;
use varve_fs::stream::frame::{Frame, FrameReader};
use varve_fs::stream::{ReceiveError, Received, read_header};
use varve_fs::{CommitError, FormatOptions, MountOptions, VarveFs, ViewKind, ViewName, format};
use varve_testkit::rng::Rng;
use varve_vfs::{Caller, FsError, TreeLimits, Vfs};

use crate::bench::{Rows, check};
use crate::crash::{STORE, sim_store};
use crate::snapshots::{Work, open_with, same, view};
use crate::support::{BOTH, Calls, READ, ROOT};
use crate::views::sound;

const LARGE: usize = 70_000;

/// Everything is small and in little memory, so that tables are made and merged.
fn tight() -> MountOptions {
    MountOptions { memory_budget_bytes: 1 << 19, ..MountOptions::default() }
}

pub(crate) fn sent(fs: &VarveFs, name: &str, since: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    fs.send_snapshot(name, since, None, &mut out, &mut |_| ()).unwrap();
    out
}

pub(crate) fn receive(fs: &VarveFs, mut stream: &[u8]) -> Result<Received, ReceiveError> {
    receive_from(fs, &mut stream)
}

fn receive_from(fs: &VarveFs, stream: &mut dyn Read) -> Result<Received, ReceiveError> {
    let mut stream = FrameReader::new(stream).map_err(ReceiveError::Interrupted)?;
    let header = read_header(&mut stream)?;
    fs.receive_snapshot(&header, &mut stream, &mut |_| ())
}

/// A store that can receive what the store of `fs` sends.
pub(crate) fn target(seed: u64, fs: &VarveFs) -> Arc<SimEnv> {
    let superblock = fs.superblock();
    let options = FormatOptions {
        name_hash_key: Some(superblock.name_hash_key.clone()),
        name_hash_bits: superblock.name_hash_bits,
        large_file_threshold_bytes: superblock.large_file_threshold_bytes,
        ..FormatOptions::default()
    };
    sim_store(seed, &options)
}

#[test]
fn received_snapshots_are_what_was_sent() {
    let mut open_files = 0;
    for seed in 200..212 {
        let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
        let env = sim_store(seed, &if seed % 2 == 0 { low } else { FormatOptions::default() });
        let fs = open_with(&env, tight());
        let (mut work, mut rng) = (Work::new(seed), Rng::new(seed));
        let other = target(seed + 1, &fs);
        let mut there = open_with(&other, tight());
        let mut last: Option<String> = None;
        for round in 0..5 {
            work.run(&fs, 20 + rng.below(150));
            if round == 1 {
                fs.dictionaries().create(b"pairs").unwrap();
            }
            if round > 0 {
                let pair = (format!("{round}").into(), Some("value".into()));
                fs.dictionaries().change(b"pairs", vec![pair]).unwrap();
            }
            let name = format!("{round}");
            let report = fs.check(&mut |_| ()).unwrap();
            let is_open = |found: &&Finding| matches!(found, Finding::Pending { .. });
            open_files += report.findings.iter().filter(is_open).count();
            fs.create_snapshot(&name).unwrap();
            if rng.below(4) == 0 {
                // A snapshot that is not sent.
                work.run(&fs, rng.below(60));
                fs.create_snapshot(&format!("{round} more")).unwrap();
            }
            let received = receive(&there, &sent(&fs, &name, last.as_deref())).unwrap();
            assert_eq!(received.snapshot.name, name);
            same(&view(&fs, &name), &there);
            same(&view(&fs, &name), &view(&there, &name));
            sound(&there);
            let pairs = there.dictionaries().list().unwrap().len();
            assert_eq!(pairs, usize::from(round > 0));
            if rng.below(2) == 0 {
                there.close().unwrap();
                there = open_with(&other, tight());
                sound(&there);
            }
            if let Some(last) = last.as_ref().filter(|_| rng.below(2) == 0) {
                there.delete_snapshot(last).unwrap();
            }
            last = Some(name);
        }
        let last = last.unwrap();
        // What was received can be sent on, and changed.
        let third = target(seed + 2, &fs);
        let third = open_with(&third, tight());
        receive(&third, &sent(&there, &last, None)).unwrap();
        same(&there, &third);
        let made = there.mk(ROOT, "made after all");
        there.put_at(made, 0, &[1; 100]);
        assert!(receive(&there, &sent(&fs, &last, Some("0"))).is_err());
        sound(&there);
    }
    assert!(open_files > 20, "{open_files} files were open without a name or written to");
}

/// Two snapshots of a store with large and small files and a dictionary.
pub(crate) fn source() -> VarveFs {
    source_of(&FormatOptions::default(), LARGE)
}

fn source_of(options: &FormatOptions, large: usize) -> VarveFs {
    let env = sim_store(7, options);
    let fs = open_with(&env, MountOptions::default());
    let dir = fs.mk_dir(ROOT, "dir");
    for (name, len) in [("large", large), ("gone", large), ("small", 100), ("same", large)] {
        let ino = fs.mk(dir, name);
        fs.put_at(ino, 0, &vec![1; len]);
    }
    let sparse = fs.mk(dir, "sparse");
    fs.put_at(sparse, 3 << 20, &[5; 1000]);
    fs.dictionaries().create(b"pairs").unwrap();
    fs.dictionaries().change(b"pairs", vec![("key".into(), Some("then".into()))]).unwrap();
    fs.create_snapshot("one").unwrap();
    fs.put_at(fs.find(dir, "large").unwrap().ino, 10, b"changed");
    fs.put_at(fs.find(dir, "small").unwrap().ino, 0, &vec![2; large]);
    fs.unlink(dir, crate::support::name("gone")).unwrap();
    fs.mv(dir, "same", ROOT, "moved").unwrap();
    let made = fs.mk_dir(ROOT, "made");
    fs.mk(made, "new");
    fs.dictionaries().change(b"pairs", vec![("key".into(), Some("now".into()))]).unwrap();
    fs.create_snapshot("two").unwrap();
    fs
}

#[test]
fn a_stream_costs_the_changes() {
    let fs = source();
    let (whole, changes) = (sent(&fs, "two", None), sent(&fs, "two", Some("one")));
    assert!(whole.len() > 3 * LARGE && changes.len() < 2 * LARGE + 10_000, "{}", changes.len());
    assert!(whole.len() < 5 * LARGE, "holes are not sent: {}", whole.len());
    assert!(sent(&fs, "one", None).len() < 6 * LARGE);
    let failed = |name, since| {
        fs.send_snapshot(name, since, None, &mut Vec::new(), &mut |_| ()).unwrap_err()
    };
    assert!(matches!(failed("none", None), FsError::NotFound));
    assert!(matches!(failed("two", Some("none")), FsError::NotFound));
    assert!(matches!(failed("one", Some("two")), FsError::Invalid(_)));
}

/// What does not fit is refused, and nothing changes.
#[test]
fn a_stream_that_does_not_fit_is_refused() {
    let fs = source();
    let (one, two) = (sent(&fs, "one", None), sent(&fs, "two", Some("one")));
    let refused = |fs: &VarveFs, stream: &[u8], why: &str| match receive(fs, stream) {
        Err(ReceiveError::Refused(text, _)) => assert!(text.contains(why), "{text}"),
        other => panic!("{why}: {other:?}"),
    };
    let plain = open_with(&sim_store(8, &FormatOptions::default()), MountOptions::default());
    refused(&plain, &one, "hashes names");
    let env = target(9, &fs);
    let there = open_with(&env, MountOptions::default());
    refused(&there, &two, "`one`, which is not here");
    receive(&there, &one).unwrap();
    refused(&there, &one, "already");
    refused(&there, &sent(&fs, "two", None), "not empty");
    let stray = there.mk(ROOT, "stray");
    refused(&there, &two, "changed since snapshot `one`");
    there.put_at(stray, 0, b"x");
    there.unlink(ROOT, crate::support::name("stray")).unwrap();
    // The directory's times are others still.
    refused(&there, &two, "changed since snapshot `one`");
    there.roll_back("one").unwrap();
    receive(&there, &two).unwrap();
    same(&view(&fs, "two"), &there);
    sound(&there);
    assert_eq!(there.transactions().unwrap().len(), 0);
}

/// Each byte of a stream that is another one is noticed, and changes nothing.
#[test]
fn a_damaged_stream_changes_nothing() {
    let fs = source();
    let (one, two) = (sent(&fs, "one", None), sent(&fs, "two", Some("one")));
    let env = target(10, &fs);
    let there = open_with(&env, MountOptions::default());
    receive(&there, &one).unwrap();
    // Each frame's kind, length, content and checksum: two places of each.
    let mut at = 8;
    let mut places = vec![0, 5];
    while at < two.len() {
        let len = u32::from_le_bytes(two[at + 1..at + 5].try_into().unwrap()) as usize;
        places.extend([at, at + 2, at + 5, at + 5 + len / 2, at + 5 + len + 1]);
        at += len + 9;
    }
    assert_eq!(at, two.len());
    for place in places {
        let mut damaged = two.clone();
        damaged[place] ^= 0x10;
        assert!(receive(&there, &damaged).is_err(), "byte {place} of {}", two.len());
        same(&view(&fs, "one"), &there);
    }
    there.discard_receipt().unwrap();
    sound(&there);
    receive(&there, &two).unwrap();
    same(&view(&fs, "two"), &there);
    sound(&there);
}

/// Wherever a stream ends, its receiver goes on with the rest of it, also after its machine died.
#[test]
fn an_interrupted_stream_goes_on() {
    let fs = source();
    let whole = sent(&fs, "two", None);
    let (mut gone_on, mut hidden, mut rng) = (0, 0, Rng::new(3));
    for n in 0..24_usize {
        let env = target(11, &fs);
        let there = open_with(&env, MountOptions::default());
        let cut = whole.len() * n / 24 + rng.below(1000) as usize;
        let cut = cut.min(whole.len() - 1);
        let broken = receive(&there, &whole[..cut]);
        assert!(matches!(broken, Err(ReceiveError::Interrupted(_))), "{broken:?}");
        assert_eq!(there.list(ROOT), Vec::<String>::new());
        let env = if n % 2 == 0 { env.process_kill() } else { env.power_cut(n as u64) };
        let there = open_with(&env, MountOptions::default());
        sound(&there);
        assert_eq!(there.transactions().unwrap().len(), 0);
        hidden += u32::from(assert_nobody_gets_at_receipts(&env, &there));
        let receipt = there.interrupted_receipt().unwrap();
        let mut rest = Vec::new();
        fs.send_snapshot("two", None, receipt.as_ref(), &mut rest, &mut |_| ()).unwrap();
        let noted = receipt.is_some_and(|receipt| receipt.position.is_some());
        gone_on += u32::from(noted && rest.len() < whole.len());
        receive(&there, &rest).unwrap();
        same(&view(&fs, "two"), &there);
        sound(&there);
        assert_eq!(there.interrupted_receipt().unwrap(), None);
    }
    assert!(gone_on > 8 && hidden > 8, "{gone_on} gone on, {hidden} hidden");
}

/// What is being received is a transaction for nobody else. Whether there is one with files of its own.
fn assert_nobody_gets_at_receipts(env: &SimEnv, fs: &VarveFs) -> bool {
    let views = env.list(&Path::new(STORE).join("views")).unwrap_or_default();
    for view in &views {
        let id = view.name.to_str().unwrap();
        assert!(matches!(fs.transaction(id), Err(FsError::NotFound)));
        assert!(matches!(fs.open_view(&ViewName::transaction(id)), Err(FsError::NotFound)));
        assert!(matches!(fs.abort_transaction(id), Err(FsError::NotFound)));
    }
    !views.is_empty()
}

/// Files are noted while one of them is half there: its rest is as durable as what stood before.
#[test]
fn a_file_that_was_noted_in_the_middle_is_whole_after_a_power_cut() {
    let fs = open_with(&sim_store(7, &FormatOptions::default()), MountOptions::default());
    let files = [("first", 66_u64 << 20), ("second", 70 << 20)];
    for (name, len) in files {
        let ino = fs.mk(ROOT, name);
        let piece = vec![name.len() as u8; 1 << 20];
        (0..len >> 20).for_each(|at| fs.put_at(ino, at << 20, &piece));
    }
    fs.create_snapshot("both").unwrap();
    let whole = sent(&fs, "both", None);
    let env = target(11, &fs);
    let there = open_with(&env, MountOptions::default());
    let broken = receive(&there, &whole[..whole.len() - (1 << 20)]);
    assert!(matches!(broken, Err(ReceiveError::Interrupted(_))), "{broken:?}");
    // What notes it is durable, as after some seconds on a machine.
    there.sync().unwrap();
    let there = open_with(&env.power_cut_keep_nothing(), MountOptions::default());
    let (receipt, mut rest) = (there.interrupted_receipt().unwrap(), Vec::new());
    fs.send_snapshot("both", None, receipt.as_ref(), &mut rest, &mut |_| ()).unwrap();
    assert!(rest.len() < whole.len() / 4, "{} of {} again", rest.len(), whole.len());
    receive(&there, &rest).unwrap();
    for (name, len) in files {
        let attr = there.find(ROOT, name).unwrap();
        assert_eq!(attr.size, len);
        let handle = there.open_as(attr.ino, READ);
        for at in (0..len).step_by(1 << 20) {
            let piece = there.read(attr.ino, handle, at, 1 << 20).unwrap();
            assert!(piece.iter().all(|byte| *byte == name.len() as u8), "{name} at {at}");
        }
        there.release(attr.ino, handle).unwrap();
    }
}

#[test]
fn every_crash_of_a_receipt_leaves_all_of_it_or_nothing() {
    let fs = source();
    let (one, two) = (sent(&fs, "one", None), sent(&fs, "two", Some("one")));
    let (mut whole, mut absent, mut gone_on) = (0, 0, 0);
    for n in (0..).step_by(3) {
        let env = target(n, &fs);
        let there = open_with(&env, MountOptions::default());
        receive(&there, &one).unwrap();
        env.crash_after(n);
        let done = receive(&there, &two);
        let crashed = env.crashed();
        assert!(crashed || done.is_ok(), "{done:?}");
        for image in [env.process_kill_within(n), env.power_cut_keep_nothing(), env.power_cut(n)] {
            let report = check(&image);
            let unknown = |found: &&Finding| matches!(found, Finding::UnknownRow { .. });
            assert_eq!(report.findings.iter().find(unknown), None);
            let there = open_with(&image, MountOptions::default());
            sound(&there);
            let has = there.view_names(ViewKind::Snapshot).unwrap().len() == 2;
            assert!(has || done.is_err(), "a receipt that returned is lost");
            if has {
                whole += 1
            } else {
                absent += 1
            }
            same(&view(&fs, if has { "two" } else { "one" }), &there);
            if !has {
                let (receipt, mut rest) = (there.interrupted_receipt().unwrap(), Vec::new());
                let since = Some("one");
                fs.send_snapshot("two", since, receipt.as_ref(), &mut rest, &mut |_| ()).unwrap();
                gone_on += u32::from(rest.len() < two.len() - 1000);
                receive(&there, &rest).unwrap();
            }
            same(&view(&fs, "two"), &view(&there, "two"));
        }
        if !crashed {
            break;
        }
    }
    assert!(
        whole > 5 && absent > 10 && gone_on > 2,
        "{whole} whole, {absent} absent, {gone_on} gone on"
    );
}

/// The golden file of this name, which `VARVE_BLESS` makes anew of what is `sent` now.
fn golden(name: &str, sent: &dyn Fn() -> Vec<u8>) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let env = crate::support::os_env();
    if std::env::var_os("VARVE_BLESS").is_some_and(|blessed| blessed == *name) {
        let file = env.open(&path, varve_env::OpenMode::CreateOrOpen).unwrap();
        file.set_len(0).unwrap();
        file.write_all_at(&sent(), 0).unwrap();
    }
    let file = env.open(&path, varve_env::OpenMode::Read).unwrap();
    let mut stream = vec![0; file.stat().unwrap().len as usize];
    file.read_exact_at(&mut stream, 0).unwrap();
    stream
}

/// A store that has received the golden stream of the first version.
fn golden_store() -> VarveFs {
    let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
    let stream = golden("whole-1.sent", &|| sent(&source_of(&low, 5000), "two", None));
    let mut golden = &stream[..];
    let mut reader = FrameReader::new(&mut golden).unwrap();
    let header = read_header(&mut reader).unwrap();
    assert_eq!(header.version, 1);
    let sim: Arc<dyn Env> = SimEnv::new(1);
    let options = FormatOptions { name_hash_key: Some(header.name_hash_key.clone()), ..low };
    format(&sim, Path::new(STORE), &options).unwrap();
    let there = VarveFs::open(sim, Path::new(STORE), MountOptions::default()).unwrap();
    there.receive_snapshot(&header, &mut reader, &mut |_| ()).unwrap();
    there
}

/// Streams that the first version wrote are read for ever.
#[test]
fn a_golden_stream() {
    let there = golden_store();
    assert_eq!(there.list(ROOT), ["dir", "made", "moved"]);
    let moved = there.find(ROOT, "moved").unwrap().ino;
    assert_eq!(there.contents(moved), vec![1; 5000]);
    let dir = there.find(ROOT, "dir").unwrap().ino;
    assert_eq!(there.list(dir), ["large", "small", "sparse"]);
    assert_eq!(
        there.contents(there.find(dir, "large").unwrap().ino)[10..20],
        *b"changed\x01\x01\x01"
    );
    assert_eq!(there.find(dir, "sparse").unwrap().size, (3 << 20) + 1000);
    assert_eq!(there.dictionaries().get(b"pairs", b"key").unwrap().as_deref(), Some(&b"now"[..]));
    sound(&there);
}

/// And so are those with changes of large files, which the second version began with.
#[test]
fn a_golden_stream_of_changes() {
    let stream = golden("changes-2.sent", &|| {
        let fs = golden_store();
        let dir = fs.find(ROOT, "dir").unwrap().ino;
        let sparse = fs.find(dir, "sparse").unwrap().ino;
        fs.put_at(sparse, 1 << 20, &[6; 1000]);
        let handle = fs.open_as(sparse, BOTH);
        fs.fallocate(sparse, handle, varve_vfs::AllocateMode::PunchHole, 3 << 20, 4096).unwrap();
        fs.release(sparse, handle).unwrap();
        fs.cut(fs.find(dir, "large").unwrap().ino, 4500);
        fs.create_snapshot("three").unwrap();
        sent(&fs, "three", Some("two"))
    });
    let there = golden_store();
    let kinds = crate::sent_forged::frames(&stream).into_iter().map(|frame| match frame {
        Frame::Changed { .. } => 'c',
        Frame::Hole { .. } => 'h',
        Frame::Bytes { .. } => 'b',
        Frame::File { .. } => 'f',
        _ => '-',
    });
    let mut kinds: Vec<char> = kinds.collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, ['-', 'b', 'c', 'f', 'h']);
    receive(&there, &stream).unwrap();
    let dir = there.find(ROOT, "dir").unwrap().ino;
    let large = there.contents(there.find(dir, "large").unwrap().ino);
    assert!(large.len() == 4500 && large[10..20] == *b"changed\x01\x01\x01");
    let sparse = there.contents(there.find(dir, "sparse").unwrap().ino);
    assert_eq!(sparse.len(), (3 << 20) + 1000);
    assert!(sparse[1 << 20..][..1000] == [6; 1000] && sparse[3 << 20..] == [0; 1000]);
    sound(&there);
}

/// Both have the same dictionaries with the same pairs.
fn same_pairs(one: &VarveFs, other: &VarveFs) {
    let pairs = |fs: &VarveFs| -> Vec<_> {
        let names = fs.dictionaries().list().unwrap();
        let pairs = names.into_iter().map(|name| {
            let all = (varve_engine::KeyRange::all(), varve_engine::Direction::Forward);
            let page = fs.dictionaries().scan(&name, all.0, all.1, 1 << 20).unwrap();
            (name, page.pairs)
        });
        pairs.collect()
    };
    assert_eq!(pairs(one), pairs(other));
}

#[test]
fn dictionaries_come_and_go() {
    let fs = source();
    let put = |name: &[u8], key: &str| {
        let pairs = vec![(key.to_owned().into(), Some(format!("{key} of {name:?}").into()))];
        fs.dictionaries().change(name, pairs).unwrap();
    };
    for name in [&b"goes"[..], b"stays"] {
        fs.dictionaries().create(name).unwrap();
        (0..50).for_each(|n| put(name, &n.to_string()));
    }
    fs.create_snapshot("three").unwrap();
    let env = target(12, &fs);
    let there = open_with(&env, MountOptions::default());
    receive(&there, &sent(&fs, "three", None)).unwrap();
    same_pairs(&fs, &there);
    fs.dictionaries().remove(b"goes").unwrap();
    fs.dictionaries().create(b"comes").unwrap();
    put(b"comes", "7");
    put(b"stays", "99");
    fs.dictionaries().change(b"stays", vec![("5".into(), None)]).unwrap();
    fs.create_snapshot("four").unwrap();
    receive(&there, &sent(&fs, "four", Some("three"))).unwrap();
    same_pairs(&fs, &there);
    sound(&there);
    // Pairs are gone with their dictionary, whatever snapshots there are.
    let gone = fs.send_snapshot("three", None, None, &mut Vec::new(), &mut |_| ());
    assert!(matches!(gone, Err(FsError::Conflict(text)) if text.contains("goes")));
    let put = vec![("key".into(), Some("changed there".into()))];
    there.dictionaries().change(b"stays", put).unwrap();
    fs.create_snapshot("five").unwrap();
    let five = receive(&there, &sent(&fs, "five", Some("four")));
    assert!(matches!(five, Err(ReceiveError::Refused(..))), "{five:?}");
}

/// A receipt that broke off behind a long key of a dictionary had a token that neither a daemon nor a command line takes.
#[test]
fn a_stream_that_breaks_off_behind_a_long_key_goes_on_with_a_short_token() {
    let fs = source();
    let keys = (b'a'..=b'i').flat_map(|first| [20_000, 65_536].map(|len| vec![first; len]));
    let pairs = keys.map(|key| (key.into(), Some("value".into()))).collect();
    fs.dictionaries().change(b"pairs", pairs).unwrap();
    fs.create_snapshot("long").unwrap();
    let whole = sent(&fs, "long", None);
    let pairs_begin = whole.windows(100).position(|bytes| bytes == [b'a'; 100]).unwrap();
    let mut rest_is_less = 0;
    for n in 1..8 {
        let there = open_with(&target(11, &fs), MountOptions::default());
        let cut = pairs_begin + (whole.len() - pairs_begin) * n / 8;
        let broken = receive(&there, &whole[..cut]);
        assert!(matches!(broken, Err(ReceiveError::Interrupted(_))), "{broken:?}");
        let receipt = there.interrupted_receipt().unwrap().unwrap();
        assert!(receipt.token().len() < 20 << 10, "{} digits", receipt.token().len());
        let mut rest = Vec::new();
        fs.send_snapshot("long", None, Some(&receipt), &mut rest, &mut |_| ()).unwrap();
        rest_is_less += u32::from(rest.len() < whole.len() - pairs_begin);
        receive(&there, &rest).unwrap();
        same_pairs(&fs, &there);
        same(&view(&fs, "long"), &there);
        sound(&there);
    }
    assert!(rest_is_less > 3, "{rest_is_less} of 7");
}

/// What was received is changed and sent back, more than once, and ids are never those of other files. Each time they moved on so far
/// that they were used up after some thousand times.
#[test]
fn a_tree_goes_back_and_forth() {
    let fs = source();
    let env = target(13, &fs);
    let there = open_with(&env, MountOptions::default());
    receive(&there, &sent(&fs, "two", None)).unwrap();
    let (mut here, mut other) = (&fs, &there);
    let mut last = "two".to_owned();
    let (mut seen, mut last_made) = (BTreeSet::new(), None);
    for round in 0..4 {
        // Ids that are used and undone where it is received.
        let gone = here.mk(ROOT, "gone again");
        here.put_at(gone, 0, &vec![9; LARGE]);
        assert!(seen.insert(gone));
        here.roll_back(&last).unwrap();
        let made = other.mk(ROOT, &format!("made {round}"));
        assert!(seen.insert(made));
        if let Some(last_made) = last_made.replace(made.get()) {
            let moved = made.get() - last_made;
            assert!((1 << 39..(1 << 40) + 100).contains(&moved), "{moved} in round {round}");
        }
        other.put_at(made, 0, &vec![round; LARGE]);
        other.put_at(
            other.find(other.find(ROOT, "dir").unwrap().ino, "large").unwrap().ino,
            0,
            &[round],
        );
        let name = format!("back {round}");
        other.create_snapshot(&name).unwrap();
        receive(here, &sent(other, &name, Some(&last))).unwrap();
        same(other, here);
        same_pairs(other, here);
        sound(here);
        last = name;
        (here, other) = (other, here);
    }
}

/// Ids that were used up were told as a stream that made no sense, to be sent again.
#[test]
fn a_stream_whose_ids_are_used_up_is_refused_with_a_way_out() {
    let env = sim_store(14, &FormatOptions::default());
    let rows = Rows::open(&env);
    let mut mark = vec![varve_schema::ROW_VERSION];
    varve_schema::put_varint(&mut mark, (1 << 59) - 10);
    rows.put(rows.meta, varve_schema::key::ID_MARK, mark);
    rows.close();
    let fs = open_with(&env, MountOptions::default());
    let first = fs.mk(ROOT, "first");
    assert_eq!(first.get(), (1 << 59) - 10);
    fs.create_snapshot("last").unwrap();
    let there = open_with(&target(15, &fs), MountOptions::default());
    receive(&there, &sent(&fs, "last", None)).unwrap();
    same(&fs, &there);
    let beyond = there.mk(ROOT, "beyond");
    assert!(beyond.get() > 1 << 59);
    there.create_snapshot("beyond").unwrap();
    let third = open_with(&target(16, &fs), MountOptions::default());
    for (fs, since) in [(&fs, Some("last")), (&third, None)] {
        let refused = receive(fs, &sent(&there, "beyond", since));
        let Err(ReceiveError::Refused(text, hint)) = refused else { panic!("{refused:?}") };
        assert!(text.contains("used up") && hint.contains("into a new store"), "{text}: {hint}");
        assert_eq!(fs.interrupted_receipt().unwrap(), None);
        fs.mk(ROOT, "goes on");
        sound(fs);
    }
}

/// Deletes a snapshot when something is written.
struct Deleting<'a>(&'a VarveFs, Vec<FsError>);

impl std::io::Write for Deleting<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.1.extend(["one", "two"].map(|name| self.0.delete_snapshot(name).unwrap_err()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_snapshot_that_is_being_sent_is_not_deleted() {
    let fs = source();
    let mut out = Deleting(&fs, Vec::new());
    fs.send_snapshot("two", Some("one"), None, &mut out, &mut |_| ()).unwrap();
    assert!(out.1.len() > 4 && out.1.iter().all(|e| matches!(e, FsError::NotSupported(_))));
    fs.delete_snapshot("one").unwrap();
    fs.delete_snapshot("two").unwrap();
}

#[test]
fn limits_are_sent_and_hold() {
    let fs = source();
    let dir = fs.find(ROOT, "dir").unwrap().ino;
    fs.set_limits(dir, TreeLimits { bytes: None, inodes: Some(4) }).unwrap();
    fs.create_snapshot("limited").unwrap();
    let there = open_with(&target(15, &fs), MountOptions::default());
    receive(&there, &sent(&fs, "two", None)).unwrap();
    there.mk(dir, "fits");
    there.roll_back("two").unwrap();
    receive(&there, &sent(&fs, "limited", Some("two"))).unwrap();
    assert_eq!(there.usage(dir).unwrap(), fs.usage(dir).unwrap());
    there.mk(dir, "fits");
    let name = crate::support::name("does not");
    let refused = there.create(Caller::ROOT, dir, name, 0o644, BOTH);
    assert!(matches!(refused, Err(FsError::QuotaExceeded)), "{refused:?}");
}

#[test]
fn clones_that_have_not_copied_everything_are_not_sent() {
    let fs = source();
    let dir =
        varve_fs::Original { snapshot: None, dir: ROOT, name: Some(crate::support::name("dir")) };
    fs.do_clone(dir, ROOT, crate::support::name("clone")).unwrap();
    fs.create_snapshot("cloned").unwrap();
    let mut out = Vec::new();
    let refused = fs.send_snapshot("cloned", None, None, &mut out, &mut |_| ());
    assert!(matches!(refused, Err(FsError::NotSupported(text)) if text.contains("clones")));
    assert!(sent(&fs, "two", Some("one")).len() > 100);
}

/// A program that has files open where a snapshot is received keeps them.
#[test]
fn open_files_outlive_what_is_received() {
    let fs = source();
    let env = target(14, &fs);
    let there = open_with(&env, MountOptions::default());
    receive(&there, &sent(&fs, "one", None)).unwrap();
    let dir = there.find(ROOT, "dir").unwrap().ino;
    let gone = there.find(dir, "gone").unwrap().ino;
    let small = there.find(dir, "small").unwrap().ino;
    let (open, open_small) = (there.open_as(gone, READ), there.open_as(small, READ));
    let nameless = there.mk(ROOT, "nameless");
    let held = there.open_as(nameless, BOTH);
    there.unlink(ROOT, crate::support::name("nameless")).unwrap();
    let refused = receive(&there, &sent(&fs, "two", Some("one")));
    // The times of the root are others.
    assert!(matches!(refused, Err(ReceiveError::Refused(..))), "{refused:?}");
    there.roll_back("one").unwrap();
    let large = there.find(dir, "large").unwrap().ino;
    let writer = there.open_as(large, BOTH);
    let refused = receive(&there, &sent(&fs, "two", Some("one")));
    let Err(ReceiveError::Commit(CommitError::InUse(paths))) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(paths, ["/dir/large"]);
    same(&view(&there, "one"), &there);
    there.release(large, writer).unwrap();
    receive(&there, &sent(&fs, "two", Some("one"))).unwrap();
    same(&view(&fs, "two"), &there);
    assert_eq!(there.read(gone, open, 0, LARGE).unwrap(), vec![1; LARGE]);
    assert_eq!(there.read(small, open_small, 0, LARGE).unwrap(), vec![2; LARGE]);
    for (ino, handle) in [(gone, open), (small, open_small), (nameless, held)] {
        there.release(ino, handle).unwrap();
    }
    sound(&there);
}
