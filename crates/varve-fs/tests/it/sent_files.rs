//! Large files in sent snapshots: what has changed in them comes, and makes them the same byte for byte, on storage whose
//! copies share room and on other.

use std::path::Path;
use std::sync::Arc;

use varve_env::sim::{SimEnv, SimOp};
use varve_fs::stream::ReceiveError;
use varve_fs::stream::frame::Frame;
use varve_fs::{CommitError, FormatOptions, MountOptions, VarveFs, ViewKind};
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{AllocateMode, Vfs};

use crate::crash::{STORE, sim_store};
use crate::sent::{receive, sent, target};
use crate::sent_forged::frames;
use crate::snapshots::{open_with, same, view};
use crate::support::{BOTH, Calls, READ, ROOT, WRITE, name};
use crate::views::sound;

const BLOCK: u64 = 1 << 16;

fn sharing(env: Arc<SimEnv>, shares: bool) -> Arc<SimEnv> {
    env.set_shares_room(shares);
    env
}

fn punch(fs: &VarveFs, ino: InodeId, offset: u64, len: u64) {
    let handle = fs.open_as(ino, BOTH);
    fs.fallocate(ino, handle, AllocateMode::PunchHole, offset, len).unwrap();
    fs.release(ino, handle).unwrap();
}

#[test]
fn a_changed_block_of_a_large_file_costs_about_a_block() {
    const LEN: u64 = 64 << 20;
    for shares in [false, true] {
        let env = sharing(sim_store(31, &FormatOptions::default()), shares);
        let fs = open_with(&env, MountOptions::default());
        let ino = fs.mk(ROOT, "large");
        let mut rng = Rng::new(31);
        (0..LEN >> 20).for_each(|at| fs.put_at(ino, at << 20, &rng.bytes(1 << 20)));
        fs.create_snapshot("one").unwrap();
        fs.put_at(ino, 40 << 20, b"changed");
        fs.create_snapshot("two").unwrap();
        let other = sharing(target(32, &fs), shares);
        let there = open_with(&other, MountOptions::default());
        receive(&there, &sent(&fs, "one", None)).unwrap();
        let changes = sent(&fs, "two", Some("one"));
        assert!(changes.len() < BLOCK as usize, "{} bytes, sharing: {shares}", changes.len());
        let (used, written) = (other.used_bytes(), other.count_of(SimOp::Write));
        receive(&there, &changes).unwrap();
        // A copy of all would be written by the mebibyte.
        let written = other.count_of(SimOp::Write) - written;
        assert!(other.used_bytes() < used + (4 << 20) && written < LEN >> 20, "{written} writes");
        same(&view(&fs, "two"), &there);
        same(&view(&fs, "two"), &view(&there, "two"));
        same(&view(&fs, "one"), &view(&there, "one"));
        sound(&there);
    }
}

/// A receipt compared files that may have been written to whole, holes too, and nobody could change anything meanwhile.
#[test]
fn holes_are_not_read_to_see_that_nothing_has_changed() {
    let env = sim_store(33, &FormatOptions::default());
    let fs = open_with(&env, MountOptions::default());
    let ino = fs.mk(ROOT, "hole");
    fs.cut(ino, 1 << 36);
    fs.put_at(ino, 1 << 35, b"in the middle");
    fs.create_snapshot("one").unwrap();
    fs.mk(ROOT, "more");
    fs.create_snapshot("two").unwrap();
    let other = target(34, &fs);
    let there = open_with(&other, MountOptions::default());
    receive(&there, &sent(&fs, "one", None)).unwrap();
    let changes = sent(&fs, "two", Some("one"));
    let broken = receive(&there, &changes[..changes.len() - 10]);
    assert!(matches!(broken, Err(ReceiveError::Interrupted(_))), "{broken:?}");
    // All of it is kept, as the kernel may write to it.
    other.set_descriptor(tempfile::tempfile().unwrap().into());
    let ino = there.find(ROOT, "hole").unwrap().ino;
    let handles = [READ, WRITE].map(|flags| there.open_as(ino, flags));
    let (receipt, mut rest) = (there.interrupted_receipt().unwrap(), Vec::new());
    fs.send_snapshot("two", Some("one"), receipt.as_ref(), &mut rest, &mut |_| ()).unwrap();
    let before = other.count_of(SimOp::Read);
    receive(&there, &rest).unwrap();
    let reads = other.count_of(SimOp::Read) - before;
    assert!(reads < 1000, "{reads} reads");
    fs.create_snapshot("three").unwrap();
    let before = other.count_of(SimOp::Read);
    let in_use = receive(&there, &sent(&fs, "three", Some("two")));
    assert!(matches!(in_use, Err(ReceiveError::Commit(CommitError::InUse(_)))), "{in_use:?}");
    let reads = other.count_of(SimOp::Read) - before;
    assert!(reads < 1000, "{reads} reads");
    for handle in handles {
        there.release(ino, handle).unwrap();
    }
    sound(&there);
}

/// One random change of one of a few files that are mostly large.
fn change(fs: &VarveFs, rng: &mut Rng) {
    let text = format!("f{}", rng.below(4));
    let Ok(attr) = fs.find(ROOT, &text) else {
        let ino = fs.mk(ROOT, &text);
        let len = rng.between(1, 8 * BLOCK) as usize;
        fs.put_at(ino, 0, &rng.bytes(len));
        return;
    };
    let (ino, size) = (attr.ino, attr.size);
    match rng.below(20) {
        0 => fs.unlink(ROOT, name(&text)).unwrap(),
        1 => {
            let other = format!("f{}", rng.below(4));
            fs.mv(ROOT, &text, ROOT, &other).unwrap();
        }
        // Small, and large again.
        2 => {
            fs.cut(ino, rng.below(3000));
            let bytes = rng.bytes(100_000);
            fs.put_at(ino, rng.below(9000), &bytes);
        }
        3 => fs.cut(ino, rng.below(3000)),
        4 | 5 => fs.cut(ino, rng.below(size + 1)),
        6 | 7 => fs.cut(ino, size + rng.below(3 * BLOCK)),
        8..=10 => {
            let at = rng.below(size + 1) / 4096 * 4096;
            punch(fs, ino, at, rng.between(1, 2 * BLOCK));
        }
        11 | 12 => {
            let bytes = rng.bytes(3 * BLOCK as usize);
            fs.put_at(ino, rng.below(size + BLOCK), &bytes);
        }
        // Zeros are bytes too.
        13 => fs.put_at(ino, rng.below(size + 1), &[0; 9000]),
        _ => {
            let len = rng.between(1, 5000) as usize;
            let bytes = rng.bytes(len);
            fs.put_at(ino, rng.below(size + 1), &bytes);
        }
    }
}

/// Receives `stream`, which may break off on the way, with or without a crash; it goes on then.
fn receive_in_parts(
    fs: &VarveFs,
    (env, there): (Arc<SimEnv>, VarveFs),
    (to, since): (&str, Option<&str>),
    rng: &mut Rng,
) -> (Arc<SimEnv>, VarveFs, u32) {
    let (mut env, mut there, mut gone_on) = (env, there, 0);
    for _ in 0..rng.below(4) {
        let (receipt, mut rest) = (there.interrupted_receipt().unwrap(), Vec::new());
        fs.send_snapshot(to, since, receipt.as_ref(), &mut rest, &mut |_| ()).unwrap();
        let cut = rng.below(rest.len() as u64) as usize;
        let broken = receive(&there, &rest[..cut]);
        assert!(matches!(broken, Err(ReceiveError::Interrupted(_))), "{broken:?}");
        gone_on += u32::from(receipt.is_some_and(|receipt| receipt.position.is_some()));
        if rng.chance(50) {
            if rng.chance(50) {
                there.sync().unwrap();
            }
            env = match rng.below(3) {
                0 => env.process_kill(),
                1 => env.power_cut_keep_nothing(),
                _ => env.power_cut(rng.below(1 << 30)),
            };
            there = open_with(&env, MountOptions::default());
            sound(&there);
        }
    }
    let (receipt, mut rest) = (there.interrupted_receipt().unwrap(), Vec::new());
    fs.send_snapshot(to, since, receipt.as_ref(), &mut rest, &mut |_| ()).unwrap();
    receive(&there, &rest).unwrap();
    (env, there, gone_on)
}

#[test]
fn large_files_that_change_are_the_same_there() {
    let (mut gone_on, mut changed, mut holes) = (0, 0, 0);
    for seed in 0..24 {
        let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
        let options = if seed % 2 == 0 { low } else { FormatOptions::default() };
        let env = sharing(sim_store(seed, &options), seed % 4 < 2);
        let (fs, mut rng) = (open_with(&env, MountOptions::default()), Rng::new(seed));
        let mut other = sharing(target(seed + 100, &fs), seed % 8 < 4);
        let mut there = open_with(&other, MountOptions::default());
        let mut last: Option<String> = None;
        for round in 0..6 {
            let mut more = Vec::new();
            for n in 0..rng.below(3) {
                (0..rng.below(5)).for_each(|_| change(&fs, &mut rng));
                more.push(format!("{round} more {n}"));
                fs.create_snapshot(&more[n as usize]).unwrap();
            }
            (0..rng.below(8)).for_each(|_| change(&fs, &mut rng));
            // Somebody writes while the snapshot is made, and goes on.
            let open = fs.find(ROOT, "f0").ok().filter(|_| rng.chance(30));
            let open = open.map(|attr| (attr.ino, fs.open_as(attr.ino, BOTH)));
            if let Some((ino, handle)) = open {
                fs.write(ino, handle, rng.below(9 * BLOCK), &[7; 3000], false).unwrap();
            }
            let to = format!("{round}");
            fs.create_snapshot(&to).unwrap();
            if let Some((ino, handle)) = open {
                fs.write(ino, handle, rng.below(9 * BLOCK), &[8; 3000], false).unwrap();
                fs.release(ino, handle).unwrap();
            }
            (0..rng.below(3)).for_each(|_| change(&fs, &mut rng));
            // What is kept at one of them goes to another.
            more.retain(|_| rng.chance(50));
            more.iter().for_each(|more| fs.delete_snapshot(more).unwrap());
            for frame in frames(&sent(&fs, &to, last.as_deref())) {
                changed += u32::from(matches!(frame, Frame::Changed { .. }));
                holes += u32::from(matches!(frame, Frame::Hole { .. }));
            }
            let span = (to.as_str(), last.as_deref());
            let parts;
            (other, there, parts) = receive_in_parts(&fs, (other, there), span, &mut rng);
            gone_on += parts;
            same(&view(&fs, &to), &there);
            for name in there.view_names(ViewKind::Snapshot).unwrap() {
                same(&view(&fs, &name.name), &view(&there, &name.name));
            }
            sound(&there);
            if let Some(last) = last.as_ref().filter(|_| rng.chance(30)) {
                there.delete_snapshot(last).unwrap();
            }
            last = Some(to);
        }
    }
    assert!(gone_on > 20 && changed > 100 && holes > 20, "{gone_on} {changed} {holes}");
}

/// A store with two snapshots between which large files change in every way.
pub(crate) fn changed_files(seed: u64, shares: bool) -> (VarveFs, Vec<u8>, Vec<u8>) {
    let env = sharing(sim_store(seed, &FormatOptions::default()), shares);
    let (fs, mut rng) = (open_with(&env, MountOptions::default()), Rng::new(seed));
    let files = ["written", "cut", "grown", "punched", "again", "moved", "same"];
    for text in files {
        let ino = fs.mk(ROOT, text);
        fs.put_at(ino, 0, &rng.bytes(5 * BLOCK as usize / 2));
    }
    fs.create_snapshot("one").unwrap();
    let [written, cut, grown, punched, again, moved, _] =
        files.map(|text| fs.find(ROOT, text).unwrap().ino);
    fs.put_at(written, BLOCK - 5, b"in two blocks");
    fs.cut(cut, 2 * BLOCK - 7);
    fs.put_at(grown, 4 * BLOCK, b"far");
    punch(&fs, punched, 5000, BLOCK);
    fs.cut(again, 10);
    fs.put_at(again, 0, &rng.bytes(2 * BLOCK as usize));
    fs.put_at(moved, 9, b"moved");
    fs.mv(ROOT, "moved", ROOT, "here").unwrap();
    fs.create_snapshot("two").unwrap();
    let (one, two) = (sent(&fs, "one", None), sent(&fs, "two", Some("one")));
    (fs, one, two)
}

#[test]
fn every_crash_while_changes_come_leaves_all_of_them_or_nothing() {
    let (mut whole, mut absent) = (0, 0);
    for shares in [false, true] {
        let (fs, one, two) = changed_files(41, shares);
        let before = sharing(target(42, &fs), shares);
        let there = open_with(&before, MountOptions::default());
        receive(&there, &one).unwrap();
        there.close().unwrap();
        for n in (0..).step_by(4) {
            let env = before.power_cut_keep_all();
            let there = open_with(&env, MountOptions::default());
            env.crash_after(env.op_count() + n);
            let done = receive(&there, &two);
            let crashed = env.crashed();
            assert!(crashed || done.is_ok(), "{done:?}");
            for image in
                [env.process_kill_within(n), env.power_cut_keep_nothing(), env.power_cut(n)]
            {
                let there = open_with(&image, MountOptions::default());
                sound(&there);
                let has = there.view_names(ViewKind::Snapshot).unwrap().len() == 2;
                assert!(has || done.is_err(), "a receipt that returned is lost");
                (whole, absent) = (whole + u32::from(has), absent + u32::from(!has));
                same(&view(&fs, if has { "two" } else { "one" }), &there);
                if !has {
                    let (receipt, mut rest) = (there.interrupted_receipt().unwrap(), Vec::new());
                    let since = Some("one");
                    fs.send_snapshot("two", since, receipt.as_ref(), &mut rest, &mut |_| ())
                        .unwrap();
                    receive(&there, &rest).unwrap();
                }
                same(&view(&fs, "two"), &there);
                same(&view(&fs, "one"), &view(&there, "one"));
            }
            if !crashed {
                break;
            }
        }
    }
    assert!(whole > 20 && absent > 20, "{whole} whole, {absent} absent");
}

/// A power cut may leave an object longer than its row says: what is beyond that is no part of the file, on either side.
#[test]
fn what_lies_beyond_the_end_of_a_file_is_not_sent_and_does_not_come_back() {
    let (len, more) = (3 * BLOCK - 100, [0xee_u8; 5000]);
    let linger = |env: &Arc<SimEnv>| {
        let objects = Path::new(STORE).join("objects");
        let objects = env.files_raw().into_iter().filter(|path| path.starts_with(&objects));
        objects.for_each(|path| env.write_raw(&path, len, &more).unwrap());
    };
    let env = sim_store(51, &FormatOptions::default());
    let fs = open_with(&env, MountOptions::default());
    let ino = fs.mk(ROOT, "file");
    fs.put_at(ino, 0, &vec![1; len as usize]);
    let other = target(52, &fs);
    fs.close().unwrap();
    linger(&env);
    let fs = open_with(&env, MountOptions::default());
    fs.create_snapshot("one").unwrap();
    let there = open_with(&other, MountOptions::default());
    receive(&there, &sent(&fs, "one", None)).unwrap();
    there.close().unwrap();
    linger(&other);
    let there = open_with(&other, MountOptions::default());
    let ino = fs.find(ROOT, "file").unwrap().ino;
    fs.cut(ino, 4 * BLOCK);
    fs.create_snapshot("two").unwrap();
    receive(&there, &sent(&fs, "two", Some("one"))).unwrap();
    let bytes = there.contents(there.find(ROOT, "file").unwrap().ino);
    assert!(bytes.len() as u64 == 4 * BLOCK && bytes[len as usize..].iter().all(|byte| *byte == 0));
    same(&view(&fs, "two"), &there);
    sound(&there);
}
