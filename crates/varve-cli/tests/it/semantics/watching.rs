//! What programs that watch files and directories (inotify(7)) see, and what they do not.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::views::text;
use super::{Place, semantics};
use crate::harness::{run, varve};

semantics!(watches_and_commits);

/// What has happened since the last time, as the name in its directory, or "" for what is watched itself.
fn seen(watch: &OwnedFd) -> Vec<(String, ReadFlags)> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    let mut seen = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => {
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                seen.push((name.unwrap_or_default(), event.events()));
            }
            Err(Errno::AGAIN) => return seen,
            Err(error) => panic!("{error}"),
        }
    }
}

/// What a commit and a rollback change is seen by nobody who watches, as no FUSE file system can say it; the watches go on.
fn watches_and_commits(place: &Place) {
    let dir = place.dir();
    for name in ["changed", "replaced", "removed", "moved"] {
        fs::write(dir.join(name), "x").unwrap();
    }
    let changes = |dir: &Path| {
        fs::write(dir.join("changed"), "others").unwrap();
        fs::write(dir.join("new"), "y").unwrap();
        fs::rename(dir.join("new"), dir.join("replaced")).unwrap();
        fs::remove_file(dir.join("removed")).unwrap();
        fs::rename(dir.join("moved"), dir.join("to")).unwrap();
        fs::create_dir(dir.join("made")).unwrap();
    };
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let what = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVE
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    inotify::add_watch(&watch, &dir, what).unwrap();
    if place.is_varve() {
        run(varve().args(["snapshot", "create"]).arg(&dir).arg("before"));
        let begun = run(varve().args(["txn", "begin"]).arg(&dir));
        let id = text(&begun);
        // Who watches in the transaction sees what is done there. To watch brings no mount: the kernel walks no path anew for it.
        fs::read_dir(&id).unwrap();
        let within = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&within, Path::new(&id), what).unwrap();
        changes(Path::new(&id));
        let names: Vec<String> = seen(&within).into_iter().map(|(name, _)| name).collect();
        for name in ["changed", "new", "replaced", "removed", "moved", "to", "made"] {
            assert!(names.iter().any(|seen| seen == name), "{name}: {names:?}");
        }
        run(varve().args(["txn", "commit"]).arg(&dir).arg(&id));
        assert_eq!(seen(&watch), [], "a commit");
        assert_eq!(fs::read(dir.join("changed")).unwrap(), b"others");
        run(varve().args(["snapshot", "rollback"]).arg(&dir).arg("before"));
        assert_eq!(seen(&watch), [], "a rollback");
    }
    changes(&dir);
    let seen = seen(&watch);
    for (name, event) in [
        ("changed", ReadFlags::MODIFY),
        ("new", ReadFlags::CREATE),
        ("replaced", ReadFlags::MOVED_TO),
        ("removed", ReadFlags::DELETE),
        ("moved", ReadFlags::MOVED_FROM),
        ("to", ReadFlags::MOVED_TO),
        ("made", ReadFlags::CREATE),
    ] {
        let is_it = |(of, what): &&(String, ReadFlags)| of.as_str() == name && what.contains(event);
        assert!(seen.iter().any(|event| is_it(&event)), "{name}: {seen:?}");
    }
}
