//! What a mount needs that is one of several of a file system: how long the kernel keeps what it learns, and when it
//! has learned it.

use std::fs::{self, File};
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use varve_fuse::{ReaddirPlus, SessionOptions, Transport};
use varve_testkit::{eventually, skipped};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, Keep, OpenFlags, Vfs};

use crate::remotefs::{Keeps, RemoteFs};
use crate::support::{TestMount, model};

const FOREVER: Keeps = Keeps { directory: Keep::Forever, name: Keep::Forever, attr: Keep::Forever };

fn mounted(keeps: Keeps, options: &SessionOptions) -> Option<(Arc<RemoteFs>, TestMount)> {
    let fs = Arc::new(RemoteFs::new(model(), keeps));
    let mount = TestMount::new(fs.clone(), options)?;
    Some((fs, mount))
}

/// How many lookups and how many questions for attributes ten looks at a path cost.
fn cost_of_ten_looks(fs: &RemoteFs, mount: &TestMount, path: &str) -> (u64, u64) {
    let count = || (fs.lookups.load(Relaxed), fs.getattrs.load(Relaxed));
    let before = count();
    for _ in 0..10 {
        fs::metadata(mount.path(path)).unwrap();
    }
    let after = count();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn each_name_and_its_attributes_are_kept_as_long_as_the_file_system_says() {
    let long = Keep::For(Duration::from_secs(3600));
    let directories_alone = Keeps { directory: long, name: Keep::Never, attr: long };
    let options = SessionOptions { xattr: false, ..SessionOptions::default() };
    let Some((fs, mount)) = mounted(directories_alone, &options) else { return };
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/f"), b"x").unwrap();
    let looks = |path| cost_of_ten_looks(&fs, &mount, path);
    // Changes below have outdated attributes.
    fs::metadata(mount.path("d/f")).unwrap();
    fs::metadata(mount.path("d")).unwrap();
    assert_eq!(looks("d/f"), (10, 0), "only the name of the file is asked for");
    assert_eq!(looks("d"), (0, 0));
    fs.keeps.lock().name = long;
    assert_eq!(looks("d/f"), (1, 0), "the last answer said that it is kept");
    *fs.keeps.lock() = Keeps { attr: Keep::Never, ..FOREVER };
    fs::rename(mount.path("d/f"), mount.path("d/g")).unwrap();
    fs::create_dir(mount.path("e")).unwrap();
    fs::write(mount.path("e/f"), b"x").unwrap();
    fs::metadata(mount.path("e/f")).unwrap();
    assert_eq!(looks("e/f"), (0, 30), "of the file and of both directories above");
    mount.finish().unwrap();
}

#[test]
fn what_a_listing_brings_is_kept_as_long_as_the_file_system_says() {
    for (keep, lookups) in [(Keep::Forever, 0), (Keep::Never, 10)] {
        let readdir_plus = ReaddirPlus::Always;
        let options = SessionOptions { readdir_plus, ..SessionOptions::default() };
        let keeps = Keeps { name: keep, ..FOREVER };
        let Some((fs, mount)) = mounted(keeps, &options) else { return };
        let name = FileName::new(b"f").unwrap();
        fs.mknod(Caller::ROOT, InodeId::ROOT, name, 0o100_644, 0).unwrap();
        assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 1);
        assert_eq!(cost_of_ten_looks(&fs, &mount, "f").0, lookups, "{keep:?}");
        mount.finish().unwrap();
    }
}

#[test]
fn what_is_kept_for_a_time_is_asked_for_after_it() {
    let time = Keep::For(Duration::from_millis(300));
    let keeps = Keeps { directory: time, name: time, attr: time };
    // The lesser of both counts.
    for (session, is_kept) in [(Duration::from_secs(3600), true), (Duration::ZERO, false)] {
        let options = SessionOptions {
            entry_timeout: session,
            attr_timeout: session,
            ..SessionOptions::default()
        };
        let Some((fs, mount)) = mounted(keeps, &options) else { return };
        let mut is_asked = vec![];
        // A slow machine may let the time pass between two looks.
        eventually("two looks within the time", || {
            fs::write(mount.path("f"), b"x").unwrap();
            let before = fs.lookups.load(Relaxed);
            fs::metadata(mount.path("f")).unwrap();
            is_asked.push(fs.lookups.load(Relaxed) > before);
            fs::remove_file(mount.path("f")).unwrap();
            is_asked.contains(&!is_kept)
        });
        fs::write(mount.path("f"), b"x").unwrap();
        std::thread::sleep(Duration::from_millis(400));
        let before = fs.lookups.load(Relaxed);
        fs::metadata(mount.path("f")).unwrap();
        assert_eq!(fs.lookups.load(Relaxed), before + 1);
        mount.finish().unwrap();
    }
}

#[test]
fn absent_names_that_may_appear_are_not_kept() {
    let Some((fs, mount)) = mounted(FOREVER, &SessionOptions::default()) else { return };
    for _ in 0..10 {
        assert!(!mount.path("a").exists());
    }
    assert_eq!(fs.lookups.load(Relaxed), 10);
    mount.finish().unwrap();
}

/// The kernel keeps the bytes of a file until it learns of another size or time, and then drops them itself.
#[test]
fn bytes_of_a_file_that_changed_elsewhere_are_dropped_if_the_session_says_so() {
    for auto_invalidate in [true, false] {
        let keeps = Keeps { attr: Keep::Never, ..FOREVER };
        let options = SessionOptions { auto_invalidate, ..SessionOptions::default() };
        let Some((fs, mount)) = mounted(keeps, &options) else { return };
        fs::write(mount.path("f"), b"before").unwrap();
        let read = || fs::read_to_string(mount.path("f")).unwrap();
        assert_eq!(read(), "before");
        let ino = InodeId::new(fs::metadata(mount.path("f")).unwrap().ino());
        let opened = fs.open(ino, OpenFlags { write: true, ..OpenFlags::default() }).unwrap();
        // Of the same length: only the time tells.
        std::thread::sleep(Duration::from_millis(20));
        fs.write_all(ino, opened.handle, 0, b"behind", false).unwrap();
        fs.release(ino, opened.handle).unwrap();
        assert_eq!(read(), if auto_invalidate { "behind" } else { "before" });
        let reads = fs.reads.load(Relaxed);
        read();
        assert_eq!(fs.reads.load(Relaxed), reads, "what is unchanged stays");
        mount.finish().unwrap();
    }
}

#[test]
fn after_a_notice_about_all_names_each_is_asked_for_again() {
    let Some((fs, mount)) = mounted(FOREVER, &SessionOptions::default()) else { return };
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/f"), b"x").unwrap();
    let open = File::open(mount.path("d/f")).unwrap();
    fs::metadata(mount.path("d/f")).unwrap();
    fs::metadata(mount.path("d")).unwrap();
    assert_eq!(cost_of_ten_looks(&fs, &mount, "d/f"), (0, 0));
    if !mount.notifier().names_dropped().unwrap() {
        skipped("this kernel knows no notice about all names");
        return mount.finish().unwrap();
    }
    assert_eq!(cost_of_ten_looks(&fs, &mount, "d/f"), (2, 0), "each name once");
    // Another file has taken the place of `f`.
    let [d, f] = ["d", "f"].map(|name| FileName::new(name.as_bytes()).unwrap());
    let dir = fs.lookup(InodeId::ROOT, d).unwrap().attr.ino;
    fs.unlink(dir, f).unwrap();
    fs.mknod(Caller::ROOT, dir, f, 0o100_644, 0).unwrap();
    assert_eq!(fs::metadata(mount.path("d/f")).unwrap().len(), 1, "nobody has said so");
    mount.notifier().names_dropped().unwrap();
    assert_eq!(fs::metadata(mount.path("d/f")).unwrap().len(), 0);
    let mut text = String::new();
    (&open).read_to_string(&mut text).unwrap();
    assert_eq!(text, "x", "what is open stays");
    drop(open);
    mount.finish().unwrap();
}

/// While a thread of the session says that an answer has arrived, the caller has the answer: so nothing is said before.
#[test]
fn the_file_system_learns_that_an_answer_has_arrived_when_it_has() {
    for transport in [Transport::Dev, Transport::Uring] {
        let threads = NonZeroUsize::new(4);
        let transport = Some(transport);
        let options = SessionOptions { transport, threads, ..SessionOptions::default() };
        let keeps = Keeps { attr: Keep::Never, name: Keep::Never, ..FOREVER };
        let Some((fs, mount)) = mounted(keeps, &options) else { continue };
        fs::write(mount.path("f"), b"x").unwrap();
        let file = File::open(mount.path("f")).unwrap();
        // By the thread that took the request, and by another one.
        let ways: [&dyn Fn(); 2] =
            [&|| assert_eq!(file.metadata().unwrap().len(), 1), &|| file.sync_all().unwrap()];
        for way in ways {
            fs.arrivals.shut(true);
            way();
            eventually("it is said", || fs.arrivals.held.load(SeqCst) != 0);
            fs.arrivals.shut(false);
            eventually("all is said", || fs.arrivals.held.load(SeqCst) == 0);
        }
        drop(file);
        mount.finish().unwrap();
    }
}
