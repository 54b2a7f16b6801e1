//! A mount in a private namespace, which only a process with a single thread can make: so this is a
//! program without a test runner. Without /dev/fuse or user namespaces it says so and passes.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    dead_code,
    reason = "drives a mounted file system as any program would, and uses a part of what the other tests share"
)]

#[path = "it/support.rs"]
mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use varve_fuse::{MountMethod, MountOptions, SessionOptions, find_mounts};

/// Turns this program into one that looks for Varve mounts from outside the namespace.
const OUTSIDE: &str = "--print-mounts";

fn main() {
    if std::env::args().any(|argument| argument == OUTSIDE) {
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return find_mounts().unwrap().iter().for_each(|found| println!("{}", found.dir.display()));
    }
    // Started before the namespace is entered, it stays outside.
    let outside = Command::new(std::env::current_exe().unwrap())
        .arg(OUTSIDE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut options = MountOptions::new("store");
    options.methods = vec![MountMethod::Namespace];
    let session = SessionOptions::default();
    let mounted = support::TestMount::with_options(support::model(), &options, &session);
    let mut seen = None;
    if let Some(mount) = &mounted {
        fs::write(mount.path("a"), b"x").unwrap();
        let child = Command::new("cat").arg(mount.path("a")).output().unwrap();
        assert_eq!(child.stdout, b"x", "a child process sees the mount");
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let found = fs::metadata(mount.path("a")).unwrap();
        assert_eq!((found.uid(), found.gid()), (uid.as_raw(), gid.as_raw()));
        let dir = mount.dir().canonicalize().unwrap();
        assert!(find_mounts().unwrap().iter().any(|found| found.dir == dir));
        seen = Some(dir.into_os_string().into_string().unwrap());
    }
    let listed = String::from_utf8(outside.wait_with_output().unwrap().stdout).unwrap();
    if let (Some(mount), Some(dir)) = (mounted, seen) {
        assert!(!listed.contains(&dir), "{listed}");
        mount.finish().unwrap();
    }
    println!("a private namespace serves a process and its children and nobody else: ok");
}
