//! What must hold whichever way requests travel, tried over each that this machine offers.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use varve_fuse::{
    Ended, MountMethod, MountOptions, Session, SessionError, SessionOptions, Transport,
    UnmountMode, mount, unmount,
};
use varve_testkit::rng::Rng;
use varve_testkit::{PATIENCE, eventually, skipped};

use crate::objectfs::ObjectFs;
use crate::support::{TestMount, model};

/// Runs `test` on a new mount over each transport.
fn over_each(test: impl Fn(TestMount, Transport)) {
    for transport in [Transport::Dev, Transport::Uring] {
        let options = SessionOptions { transport: Some(transport), ..SessionOptions::default() };
        if let Some(mount) = TestMount::new(model(), &options) {
            println!("over {transport}");
            test(mount, transport);
        }
    }
}

fn session_of(mount: &TestMount) -> String {
    let mut buffer = [0; 512];
    let len = rustix::fs::getxattr(mount.dir(), "user.varve.session", &mut buffer).unwrap();
    String::from_utf8(buffer[..len].to_vec()).unwrap()
}

/// The kernel's switch for rings, put back when dropped.
struct Switch(String);

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

impl Switch {
    fn on() -> Option<Switch> {
        let before = fs::read_to_string(SWITCH).ok()?;
        fs::write(SWITCH, "Y").ok()?;
        Some(Switch(before))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, &self.0);
    }
}

/// Rings were switched off between the kernel's offer of them and its hearing that they are taken: the mount ended at once.
#[test]
fn a_mount_whose_rings_are_switched_off_goes_on_without() {
    if fs::read_to_string(SWITCH).is_ok_and(|value| value.trim() == "Y") {
        return skipped("the kernel's switch for FUSE over io_uring is on for others");
    }
    for transport in [None, Some(Transport::Uring)] {
        let dir = tempfile::tempdir().unwrap();
        let Some(switch) = Switch::on() else {
            return skipped("this kernel does not offer FUSE over io_uring");
        };
        let mounted = mount(dir.path(), &MountOptions::new("switched"));
        drop(switch);
        let Ok(mounted) = mounted else { return skipped("this machine does not let us mount") };
        let options = SessionOptions { transport, ..SessionOptions::default() };
        let session = Session::new(model(), mounted, &options);
        if transport.is_some() {
            assert!(matches!(session, Err(SessionError::NoUring { .. })), "{session:?}");
            continue;
        }
        let session = session.unwrap();
        assert_eq!(session.transport(), Transport::Dev);
        let stop = session.stop_handle();
        let server = std::thread::spawn(move || session.run());
        fs::write(dir.path().join("file"), vec![7; 1 << 20]).unwrap();
        assert_eq!(fs::read(dir.path().join("file")).unwrap(), vec![7; 1 << 20]);
        stop.stop(UnmountMode::Plain).unwrap();
        assert!(matches!(server.join().unwrap().unwrap(), Ended::Unmounted));
    }
}

#[test]
fn the_session_says_how_requests_travel() {
    over_each(|mount, transport| {
        assert_eq!(session_of(&mount), format!(r#"{{"transport":"{transport}"}}"#));
        mount.finish().unwrap();
    });
    let Some(mount) = TestMount::new(model(), &SessionOptions::default()) else { return };
    let said = session_of(&mount);
    assert!(said.starts_with(r#"{"transport":""#) && said.ends_with('}'), "{said}");
    mount.finish().unwrap();
}

#[test]
fn what_the_kernel_does_not_offer_is_refused_and_the_directory_left() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = MountOptions::new("test,store");
    options.methods = vec![MountMethod::Direct, MountMethod::Fusermount];
    let Ok(mounted) = mount(dir.path(), &options) else {
        return skipped("this machine does not let us mount");
    };
    let session = SessionOptions { transport: Some(Transport::Uring), ..SessionOptions::default() };
    match Session::new(model(), mounted, &session) {
        Err(SessionError::NoUring { dir: named, .. }) => {
            assert_eq!(named, dir.path().canonicalize().unwrap());
        }
        Ok(_) => unmount(dir.path(), UnmountMode::Force).unwrap(),
        Err(other) => panic!("{other}"),
    }
    fs::write(dir.path().join("below"), b"nothing is mounted here any more").unwrap();
}

/// Requests larger than one message, more of them than a ring has entries, from many threads at once.
#[test]
fn large_requests_of_many_programs_keep_their_bytes() {
    const PROGRAMS: u64 = 60;
    const BYTES: usize = 1_300_000;
    over_each(|mount, _| {
        std::thread::scope(|scope| {
            for program in 0..PROGRAMS {
                let path = mount.path(&program.to_string());
                scope.spawn(move || {
                    let bytes = Rng::new(program).bytes(BYTES);
                    let file = File::create_new(&path).unwrap();
                    file.write_all_at(&bytes, 0).unwrap();
                    rustix::fs::fsync(&file).unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    let mut found = Vec::new();
                    File::open(&path).unwrap().read_to_end(&mut found).unwrap();
                    assert!(found == bytes, "the bytes of program {program}");
                });
            }
        });
        assert_eq!(fs::read_dir(mount.dir()).unwrap().count() as u64, PROGRAMS);
        mount.finish().unwrap();
    });
}

/// More syncs than a ring has entries, all of which must come to an end.
#[test]
fn more_syncs_than_can_be_under_way_all_end() {
    over_each(|mount, _| {
        let one = Arc::new(File::create(mount.path("a")).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..120 {
                let file = one.clone();
                scope.spawn(move || (0..5).for_each(|_| rustix::fs::fsync(&file).unwrap()));
            }
        });
        drop(one);
        mount.finish().unwrap();
    });
}

/// Names that are removed are forgotten, although the kernel tells of it in a way of its own.
#[test]
fn removed_files_are_forgotten() {
    for transport in [Transport::Dev, Transport::Uring] {
        let fs = Arc::new(ObjectFs::new());
        let options = SessionOptions { transport: Some(transport), ..SessionOptions::default() };
        let Some(mount) = TestMount::new(fs.clone(), &options) else { continue };
        for turn in 0..500 {
            let path = mount.path(&format!("big{turn}"));
            fs::write(&path, b"x").unwrap();
            fs::remove_file(&path).unwrap();
        }
        eventually(&format!("all is forgotten, over {transport}"), || {
            fs.forgotten.load(Relaxed) >= 500 && fs.open_files() == 0
        });
        mount.finish().unwrap();
    }
}

#[test]
fn an_aborted_connection_ends_the_session_and_every_call() {
    over_each(|mount, _| {
        let file = File::create(mount.path("a")).unwrap();
        let Some(control) = Control::new() else {
            return skipped("needs root to mount the kernel's control of connections");
        };
        std::thread::scope(|scope| {
            let stats = || {
                let dir = mount.dir().to_path_buf();
                move || {
                    // Names that nobody asked for, so that the kernel has no answer of its own.
                    let mut names = (0_u64..).map(|name| dir.join(name.to_string()));
                    let begin = Instant::now();
                    while fs::metadata(names.next().unwrap())
                        .is_err_and(|err| err.kind() == ErrorKind::NotFound)
                    {
                        assert!(begin.elapsed() < PATIENCE, "the directory answers as before");
                    }
                }
            };
            let programs = [scope.spawn(stats()), scope.spawn(stats()), scope.spawn(stats())];
            std::thread::sleep(Duration::from_millis(50));
            control.abort(&mount);
            programs.into_iter().for_each(|program| program.join().unwrap());
        });
        assert!(file.write_all_at(b"x", 0).is_err());
        let gone = fs::metadata(mount.path("never asked for")).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
        drop(file);
        unmount(mount.dir(), UnmountMode::Lazy).unwrap();
        mount.join().unwrap();
    });
}

/// A ring's thread that failed took the mount away while its ring was open, and could wait for ever for a request that the kernel had
/// put into that meanwhile.
#[test]
fn a_thread_that_fails_ends_the_session() {
    const BREAKS_AFTER: Duration = Duration::from_millis(300);
    for transport in [Transport::Dev, Transport::Uring] {
        let fs = Arc::new(ObjectFs::new());
        let options = SessionOptions { transport: Some(transport), ..SessionOptions::default() };
        let Some(mount) = TestMount::new(fs.clone(), &options) else { continue };
        // After the first close the kernel knows that nothing is to be flushed, and closing waits for nothing.
        drop(File::create(mount.path("closed")).unwrap());
        let file = File::create(mount.path("open")).unwrap();
        *fs.breaks.lock() = Some(BREAKS_AFTER);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                stay_on_the_first_cpu();
                fs::metadata(mount.path("b")).unwrap_err();
            });
            scope.spawn(move || {
                stay_on_the_first_cpu();
                std::thread::sleep(BREAKS_AFTER / 3);
                drop(file);
            });
        });
        assert!(matches!(mount.join(), Err(SessionError::Transport { .. })), "{transport}");
    }
}

/// Binds the calling thread to the first CPU that it may use.
fn stay_on_the_first_cpu() {
    let usable = rustix::thread::sched_getaffinity(None).unwrap();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| usable.is_set(*cpu));
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(first.unwrap());
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

/// The kernel's control of its FUSE connections, mounted for a test.
struct Control(tempfile::TempDir);

impl Control {
    fn new() -> Option<Control> {
        let control = Control(tempfile::tempdir().unwrap());
        let none: Option<&std::ffi::CStr> = None;
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("fusectl", control.0.path(), "fusectl", flags, none).ok()?;
        Some(control)
    }

    fn abort(&self, mount: &TestMount) {
        let connection = rustix::fs::minor(fs::metadata(mount.dir()).unwrap().dev());
        fs::write(self.0.path().join(connection.to_string()).join("abort"), b"1").unwrap();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountMode::Lazy);
    }
}

#[test]
fn requests_are_counted_and_told() {
    over_each(|mount, _| {
        for at in 0..100 {
            std::fs::create_dir(mount.dir().join(format!("d{at}"))).unwrap();
        }
        std::fs::create_dir(mount.dir().join("d0/below")).unwrap();
        rustix::fs::rmdir(mount.dir().join("d0")).unwrap_err();
        rustix::fs::rmdir(mount.dir().join("d1")).unwrap();
        std::fs::File::open(mount.dir()).unwrap().sync_all().unwrap();
        let mut buffer = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(mount.dir(), "user.varve.requests", &mut buffer[..]);
        let said = String::from_utf8(buffer[..len.unwrap()].to_vec()).unwrap();
        for part in [
            r#""LOOKUP":{"count":10"#,
            r#""MKDIR":{"count":101,"failed":0,"timed":"#,
            r#""RMDIR":{"count":2,"failed":1,"timed":"#,
            r#""FSYNCDIR":{"count":1,"failed":0,"timed":1,"nanos":"#,
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // Who makes room for as much as he was told finds room for what is told then: each question makes it longer.
        let told = rustix::fs::getxattr_query(mount.dir(), "user.varve.requests").unwrap();
        for at in 0..20 {
            std::fs::read_link(mount.dir().join(format!("{at}"))).unwrap_err();
        }
        let len = rustix::fs::getxattr(mount.dir(), "user.varve.requests", &mut buffer[..told]);
        assert!(len.is_ok_and(|len| len < told), "{len:?} of {told}");
        mount.finish().unwrap();
    });
}
