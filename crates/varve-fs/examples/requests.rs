//! What the file system itself takes for the requests of which the kernel makes each operation, without the kernel.
//!
//! ```text
//! cargo run --release -p varve-fs --example requests DIR [FILES [DIRS [BYTES [MEMORY]]]]
//! ```
//!
//! Makes a store in DIR, which must not exist, with MEMORY MiB, and files of BYTES bytes in it; each kind of operation on all
//! of them, in an order that jumps about within and between directories. Rows that the memory has no room for are in tables.
//! Prints microseconds of CPU for one operation: of the thread that calls, of the threads that flush and merge, and of which
//! part is the kernel's below the store.
//! `varve-bench compare -t library` measures the calls that a program which embeds a file system makes instead.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measurement on the machine itself"
)]

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fs::{FormatOptions, MountOptions, VarveFs, format};
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{Caller, FsError, OpenFlags, RenameMode, SetAttr, SetTime, Vfs};

const WRITE: OpenFlags = OpenFlags {
    read: false,
    write: true,
    append: false,
    appends: false,
    truncate: false,
    exclusive: true,
    sync: false,
    execute: false,
};
const READ: OpenFlags = OpenFlags { read: true, write: false, exclusive: false, ..WRITE };

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        arguments.get(at).map_or(default, |number| number.parse().unwrap())
    };
    let Some(dir) = arguments.first() else { panic!("DIR [FILES [DIRS [BYTES [MEMORY]]]]") };
    let (files, dirs, bytes) = (number(1, 200_000), number(2, 200), number(3, 0) as usize);
    let env: Arc<dyn Env> = OsEnv::new();
    format(&env, Path::new(dir), &FormatOptions::default()).unwrap();
    let memory_budget_bytes = (number(4, 256) as usize) << 20;
    let options = MountOptions { memory_budget_bytes, ..MountOptions::default() };
    let fs = VarveFs::open(env, Path::new(dir), options).unwrap();
    let made: Vec<InodeId> = (0..dirs)
        .map(|dir| {
            let name = format!("d{dir}");
            let root = InodeId::ROOT;
            fs.mkdir(Caller::ROOT, root, name_of(&name), 0o755).unwrap().attr.ino
        })
        .collect();
    println!("{:10} {:>8} {:>8} {:>8}", "", "caller", "kernel", "others");
    Run { fs: &fs, dirs: made, files, data: vec![7; bytes] }.all();
    fs.close().unwrap();
}

struct Run<'a> {
    fs: &'a VarveFs,
    dirs: Vec<InodeId>,
    files: u64,
    data: Vec<u8>,
}

impl Run<'_> {
    fn all(&self) {
        let fs = self.fs;
        self.each("create", true, |dir, file| {
            fs.getattr(dir).unwrap();
            let name = format!("file-{file:09}");
            assert!(matches!(fs.lookup(dir, name_of(&name)), Err(FsError::NotFound)));
            let made = fs.create(Caller::ROOT, dir, name_of(&name), 0o644, WRITE);
            let (entry, opened) = made.unwrap();
            let ino = entry.attr.ino;
            if !self.data.is_empty() {
                fs.write(ino, opened.handle, 0, &self.data, false).unwrap();
            }
            fs.release(ino, opened.handle).unwrap();
            fs.forget(ino, 1);
        });
        fs.sync().unwrap();
        self.each("stat", false, |dir, file| {
            let ino = self.look_up(dir, &format!("file-{file:09}"));
            fs.forget(ino, 1);
        });
        self.known("chmod", &|_, _, ino| {
            fs.setattr(Caller::ROOT, ino, SetAttr { perm: Some(0o600), ..SetAttr::default() })
                .unwrap();
        });
        let time = Timestamp::new(1_000_000_000, 0).map(SetTime::To);
        self.known("utimens", &|_, _, ino| {
            let set = SetAttr { atime: time, mtime: time, ..SetAttr::default() };
            fs.setattr(Caller::ROOT, ino, set).unwrap();
        });
        if !self.data.is_empty() {
            self.known("read", &|_, _, ino| {
                let opened = fs.open(ino, READ).unwrap();
                fs.read(ino, opened.handle, 0, self.data.len()).unwrap();
                fs.release(ino, opened.handle).unwrap();
            });
        }
        self.known("rename", &|dir, file, _| {
            fs.getattr(dir).unwrap();
            let (from, to) = (format!("file-{file:09}"), format!("moved-{file:09}"));
            assert!(matches!(fs.lookup(dir, name_of(&to)), Err(FsError::NotFound)));
            fs.rename(dir, name_of(&from), dir, name_of(&to), RenameMode::Replace).unwrap();
        });
        self.each("list", true, |dir, file| {
            if file % (self.files / self.dirs.len() as u64) == 0 {
                fs.readdir(dir, 0, true, &mut |_| true).unwrap();
            }
        });
        self.each("unlink", false, |dir, file| {
            fs.getattr(dir).unwrap();
            fs.unlink(dir, name_of(&format!("moved-{file:09}"))).unwrap();
        });
    }

    fn look_up(&self, dir: InodeId, name: &str) -> InodeId {
        self.fs.lookup(dir, name_of(name)).unwrap().attr.ino
    }

    /// `operation` on every file, which the kernel knows already.
    fn known(&self, what: &str, operation: &dyn Fn(InodeId, u64, InodeId)) {
        let mut inos = vec![InodeId::ROOT; self.files as usize];
        for file in 0..self.files {
            inos[file as usize] = self.look_up(self.dir(file), &format!("file-{file:09}"));
        }
        self.each(what, false, |dir, file| operation(dir, file, inos[file as usize]));
        inos.iter().for_each(|ino| self.fs.forget(*ino, 1));
    }

    fn dir(&self, file: u64) -> InodeId {
        self.dirs[(file * self.dirs.len() as u64 / self.files) as usize]
    }

    /// Calls `operation` with the directory and number of every file, and says what that took.
    fn each(&self, what: &str, in_order: bool, operation: impl Fn(InodeId, u64)) {
        let before = Used::now();
        for turn in 0..self.files {
            // A prime that divides no sensible number of files: visits each once.
            let file = if in_order { turn } else { turn * 2_147_483_647 % self.files };
            operation(self.dir(file), file);
        }
        let used = Used::now();
        let each = |before: u64, after: u64| (after - before) as f64 / 1e3 / self.files as f64;
        println!(
            "{what:10} {:8.2} {:8.2} {:8.2}",
            each(before.caller, used.caller),
            each(before.kernel, used.kernel),
            each(before.others, used.others)
        );
    }
}

/// Nanoseconds of CPU so far.
struct Used {
    caller: u64,
    /// Of the caller's, in system calls, to the nearest tick.
    kernel: u64,
    others: u64,
}

impl Used {
    fn now() -> Used {
        let spent = |path: &Path| -> u64 {
            let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
        };
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let all: u64 = tasks.map(|task| spent(&task.unwrap().path())).sum();
        let caller = spent(Path::new("/proc/thread-self"));
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let ticks: u64 = stat.rsplit(' ').nth(37).and_then(|ticks| ticks.parse().ok()).unwrap_or(0);
        Used { caller, kernel: ticks * 10_000_000, others: all.saturating_sub(caller) }
    }
}

fn name_of(name: &str) -> FileName<'_> {
    FileName::new(name.as_bytes()).unwrap()
}
