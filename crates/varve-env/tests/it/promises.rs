//! One suite of promises for [`Env`] and [`File`], instantiated per machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use varve_env::os::OsEnv;
use varve_env::sim::SimEnv;
use varve_env::{Allocate, Env, FileKind, OpenMode, Seek};
use varve_types::Timestamp;

/// A machine, an empty directory on it, and whatever keeps that directory alive.
struct Machine {
    env: Arc<dyn Env>,
    root: PathBuf,
    _keep: Option<tempfile::TempDir>,
}

impl Machine {
    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Arc<dyn varve_env::File> {
        let file = self.env.open(&self.path(name), OpenMode::CreateOrOpen).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    fn get(&self, name: &str) -> Vec<u8> {
        let file = self.env.open(&self.path(name), OpenMode::Read).unwrap();
        let mut bytes = vec![0; usize::try_from(file.stat().unwrap().len).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn kind_of_error<T>(result: std::io::Result<T>) -> ErrorKind {
        result.map(drop).unwrap_err().kind()
    }
}

fn os() -> Machine {
    let dir = tempfile::tempdir().unwrap();
    Machine { env: OsEnv::new(), root: dir.path().to_owned(), _keep: Some(dir) }
}

fn sim() -> Machine {
    let env = SimEnv::new(1);
    env.create_dir(Path::new("/root")).unwrap();
    Machine { env, root: "/root".into(), _keep: None }
}

macro_rules! on_every_machine {
    ($($promise:ident),* $(,)?) => {
        mod real {
            $(#[test] fn $promise() { super::$promise(&super::os()); })*
        }

        mod simulated {
            $(#[test] fn $promise() { super::$promise(&super::sim()); })*
        }
    };
}

on_every_machine!(
    a_tree_can_be_synced,
    open_modes_create_and_refuse,
    reads_stop_at_the_end,
    writes_beyond_the_end_leave_zeros,
    set_len_cuts_and_extends,
    allocation_modes_do_what_they_say,
    seek_finds_data_and_holes,
    names_move_and_vanish,
    an_open_file_outlives_its_name,
    a_second_name_shares_the_bytes,
    directories_refuse_what_they_must,
    lock_shuts_out_the_second_opener,
    times_are_kept,
    a_write_changes_the_time,
    space_is_reported,
    many_threads_share_a_file,
    monotonic_never_goes_back,
);

fn open_modes_create_and_refuse(m: &Machine) {
    let (env, path) = (&m.env, m.path("f"));
    assert_eq!(Machine::kind_of_error(env.open(&path, OpenMode::Read)), ErrorKind::NotFound);
    assert_eq!(Machine::kind_of_error(env.open(&path, OpenMode::ReadWrite)), ErrorKind::NotFound);
    env.open(&path, OpenMode::CreateNew).unwrap().write_all_at(b"kept", 0).unwrap();
    assert_eq!(
        Machine::kind_of_error(env.open(&path, OpenMode::CreateNew)),
        ErrorKind::AlreadyExists
    );
    env.open(&path, OpenMode::CreateOrOpen).unwrap();
    assert_eq!(m.get("f"), b"kept");
    let reader = env.open(&path, OpenMode::Read).unwrap();
    assert_eq!(reader.write_all_at(b"x", 0).unwrap_err().raw_os_error(), Some(9));
    assert_eq!(m.get("f"), b"kept");
    let below = path.join("g");
    assert_eq!(
        Machine::kind_of_error(env.open(&below, OpenMode::CreateNew)),
        ErrorKind::NotADirectory
    );
    let nowhere = m.path("absent/g");
    assert_eq!(
        Machine::kind_of_error(env.open(&nowhere, OpenMode::CreateNew)),
        ErrorKind::NotFound
    );
}

fn reads_stop_at_the_end(m: &Machine) {
    let file = m.put("f", b"0123456789");
    let mut buf = [b'-'; 8];
    assert_eq!(file.read_at(&mut buf, 6).unwrap(), 4);
    assert_eq!(&buf, b"6789----");
    assert_eq!(file.read_at(&mut buf, 10).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 1 << 40).unwrap(), 0);
    assert_eq!(file.read_exact_at(&mut buf, 6).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

fn writes_beyond_the_end_leave_zeros(m: &Machine) {
    let file = m.put("f", b"ab");
    file.write_all_at(b"yz", 5).unwrap();
    file.write_all_at(b"B", 1).unwrap();
    file.sync_data().unwrap();
    assert_eq!(m.get("f"), b"aB\0\0\0yz");
}

fn set_len_cuts_and_extends(m: &Machine) {
    let file = m.put("f", b"abcdef");
    file.set_len(3).unwrap();
    file.set_len(5).unwrap();
    assert_eq!(m.get("f"), b"abc\0\0");
    assert_eq!(file.stat().unwrap().len, 5);
    file.write_all_at(&[b'x'; 20_000], 0).unwrap();
    file.set_len(5_000).unwrap();
    file.set_len(20_000).unwrap();
    assert_eq!(m.get("f"), [[b'x'; 5_000].as_slice(), &[0; 15_000]].concat());
}

fn allocation_modes_do_what_they_say(m: &Machine) {
    let file = m.put("f", &[b'x'; 10]);
    file.allocate(Allocate::KeepSize, 0, 8192).unwrap();
    assert_eq!(file.stat().unwrap().len, 10);
    file.allocate(Allocate::Extend, 4, 8).unwrap();
    assert_eq!(m.get("f"), b"xxxxxxxxxx\0\0");
    file.allocate(Allocate::PunchHole, 2, 3).unwrap();
    assert_eq!(m.get("f"), b"xx\0\0\0xxxxx\0\0");
    assert_eq!(file.allocate(Allocate::Extend, 0, 0).unwrap_err().raw_os_error(), Some(22));
}

fn seek_finds_data_and_holes(m: &Machine) {
    const BLOCK: u64 = 1 << 16;
    let file = m.put("f", &[]);
    file.write_all_at(&[1; 4096], BLOCK).unwrap();
    file.set_len(3 * BLOCK).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.seek(Seek::Data, 0).unwrap(), BLOCK);
    assert_eq!(file.seek(Seek::Data, BLOCK + 5).unwrap(), BLOCK + 5);
    assert_eq!(file.seek(Seek::Hole, 0).unwrap(), 0);
    assert_eq!(file.seek(Seek::Hole, BLOCK).unwrap(), BLOCK + 4096);
    assert_eq!(file.seek(Seek::Data, 2 * BLOCK).unwrap_err().raw_os_error(), Some(6));
    assert_eq!(file.seek(Seek::Hole, 3 * BLOCK).unwrap_err().raw_os_error(), Some(6));
}

fn names_move_and_vanish(m: &Machine) {
    m.put("a", b"first");
    m.put("b", b"second");
    m.env.rename(&m.path("a"), &m.path("b")).unwrap();
    m.env.sync_dir(&m.root).unwrap();
    assert_eq!(m.get("b"), b"first");
    assert_eq!(Machine::kind_of_error(m.env.stat(&m.path("a"))), ErrorKind::NotFound);
    m.env.remove_file(&m.path("b")).unwrap();
    assert_eq!(Machine::kind_of_error(m.env.remove_file(&m.path("b"))), ErrorKind::NotFound);
    assert_eq!(
        Machine::kind_of_error(m.env.rename(&m.path("b"), &m.path("a"))),
        ErrorKind::NotFound
    );
    assert!(m.env.list(&m.root).unwrap().is_empty());
}

fn an_open_file_outlives_its_name(m: &Machine) {
    let file = m.put("f", b"old");
    m.env.remove_file(&m.path("f")).unwrap();
    m.put("f", b"new");
    file.write_all_at(b"OLD", 0).unwrap();
    let mut buf = [0; 3];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"OLD");
    assert_eq!(m.get("f"), b"new");
}

fn a_second_name_shares_the_bytes(m: &Machine) {
    let file = m.put("a", b"one");
    m.env.link(&m.path("a"), &m.path("b")).unwrap();
    file.write_all_at(b"two", 0).unwrap();
    assert_eq!(m.get("b"), b"two");
    assert_eq!(
        Machine::kind_of_error(m.env.link(&m.path("a"), &m.path("b"))),
        ErrorKind::AlreadyExists
    );
    m.env.rename(&m.path("a"), &m.path("b")).unwrap();
    assert_eq!(m.get("a"), b"two", "a rename between two names of one file does nothing");
    m.env.remove_file(&m.path("a")).unwrap();
    assert_eq!(m.get("b"), b"two");
}

fn directories_refuse_what_they_must(m: &Machine) {
    let (dir, inner) = (m.path("d"), m.path("d/e"));
    m.env.create_dir(&dir).unwrap();
    assert_eq!(Machine::kind_of_error(m.env.create_dir(&dir)), ErrorKind::AlreadyExists);
    m.env.create_dir(&inner).unwrap();
    m.put("d/f", b"x");
    let mut names: Vec<_> =
        m.env.list(&dir).unwrap().into_iter().map(|item| (item.name, item.kind)).collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(names, [("e".into(), FileKind::Dir), ("f".into(), FileKind::File)]);
    assert_eq!(m.env.stat(&dir).unwrap().kind, FileKind::Dir);
    assert_eq!(Machine::kind_of_error(m.env.remove_dir(&dir)), ErrorKind::DirectoryNotEmpty);
    assert_eq!(Machine::kind_of_error(m.env.remove_dir(&m.path("d/f"))), ErrorKind::NotADirectory);
    assert_eq!(Machine::kind_of_error(m.env.remove_file(&inner)), ErrorKind::IsADirectory);
    assert_eq!(
        Machine::kind_of_error(m.env.rename(&dir, &m.path("d/e/d"))),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        Machine::kind_of_error(m.env.open(&dir, OpenMode::ReadWrite)),
        ErrorKind::IsADirectory
    );
    m.env.rename(&dir, &m.path("moved")).unwrap();
    assert_eq!(m.get("moved/f"), b"x");
    assert_eq!(Machine::kind_of_error(m.env.list(&dir)), ErrorKind::NotFound);
    assert_eq!(Machine::kind_of_error(m.env.sync_dir(&dir)), ErrorKind::NotFound);
    m.env.remove_dir(&m.path("moved/e")).unwrap();
}

fn lock_shuts_out_the_second_opener(m: &Machine) {
    let path = m.path("LOCK");
    let held = m.env.lock(&path).unwrap().unwrap();
    held.write_note(b"a long note").unwrap();
    held.write_note(b"short").unwrap();
    assert_eq!(m.get("LOCK"), b"short", "others can read who holds it");
    assert!(m.env.lock(&path).unwrap().is_none());
    drop(held);
    assert!(m.env.lock(&path).unwrap().is_some());
}

fn times_are_kept(m: &Machine) {
    let file = m.put("f", b"x");
    let (early, late) = (Timestamp::new(-5, 7).unwrap(), Timestamp::new(2_000_000_000, 9).unwrap());
    file.set_times(Some(early), Some(late)).unwrap();
    file.set_times(None, None).unwrap();
    let stat = m.env.stat(&m.path("f")).unwrap();
    assert_eq!((stat.accessed, stat.modified), (early, late));
    file.set_times(Some(late), None).unwrap();
    assert_eq!(file.stat().unwrap().accessed, late);
    assert_eq!(file.stat().unwrap().modified, late);
}

fn a_write_changes_the_time(m: &Machine) {
    let file = m.put("f", b"x");
    let past = Timestamp::new(1000, 0).unwrap();
    file.set_times(Some(past), Some(past)).unwrap();
    file.write_all_at(b"y", 0).unwrap();
    assert!(file.stat().unwrap().modified > past);
}

fn space_is_reported(m: &Machine) {
    let space = m.env.space(&m.root).unwrap();
    assert!(space.available_bytes <= space.free_bytes);
    assert!(space.free_bytes <= space.total_bytes);
    assert!(space.total_bytes > 0);
}

fn many_threads_share_a_file(m: &Machine) {
    let file = m.put("f", &[]);
    let threads: Vec<_> = (0..4u8)
        .map(|n| {
            let file = Arc::clone(&file);
            let body = move || {
                for i in 0..64u64 {
                    file.write_all_at(&[n + 1], i * 4 + u64::from(n)).unwrap();
                }
            };
            m.env.spawn("writer", Box::new(body)).unwrap()
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join(), Ok(()));
    }
    assert_eq!(m.get("f"), [1, 2, 3, 4].repeat(64));
}

fn monotonic_never_goes_back(m: &Machine) {
    let start = m.env.monotonic();
    m.env.sleep(Duration::from_millis(1));
    assert!(m.env.monotonic() >= start + Duration::from_millis(1));
    assert_ne!(m.env.random(), m.env.random());
    assert_eq!(m.env.boot_id(), m.env.boot_id());
    assert_eq!(Machine::kind_of_error(m.env.stat(Path::new("/no/such/path"))), ErrorKind::NotFound);
}

fn a_tree_can_be_synced(machine: &Machine) {
    machine.env.create_dir(&machine.path("d")).unwrap();
    machine.put("d/f", b"bytes");
    let watch = machine.env.watch(&machine.root).unwrap();
    machine.env.sync_below(&watch, &machine.path("d")).unwrap();
    let none = machine.env.watch(&machine.path("none"));
    assert_eq!(Machine::kind_of_error(none), ErrorKind::NotFound);
}
