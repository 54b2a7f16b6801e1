//! A PostgreSQL server of the run's own: its programs, its data directory, its start, its end.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Ground, tools};
use crate::run::{Failure, Outcome, Step};

/// Where Debian puts the programs of the server, by version.
const VERSIONS_DIR: &str = "/usr/lib/postgresql";

/// How long the server may take to answer, recovery included.
const START_WAIT_MAX: Duration = Duration::from_secs(90);

/// Users that the server may run as; it refuses root.
const USERS: &[&str] = &["postgres", "nobody"];

/// The programs and a data directory.
pub(super) struct Server {
    bin: PathBuf,
    uid: String,
    gid: String,
    data: PathBuf,
    socket_dir: PathBuf,
    log: PathBuf,
    postmaster: Option<Child>,
}

impl Server {
    /// Finds the programs; `None` if they are not there.
    pub(super) fn find(ground: &Ground, data: PathBuf) -> Result<Option<Server>, Failure> {
        let dirs = bin_dirs();
        let Some(initdb) = tools::find_in("initdb", &dirs) else { return Ok(None) };
        let bin = initdb.parent().unwrap_or(Path::new("/")).to_path_buf();
        let socket_dir = ground.outside("postgres")?;
        let user = USERS.iter().find_map(|user| {
            let id = |flag: &str| Step::new("id").args([flag, user]).capture();
            Some((id("-u").ok()?.trim().to_owned(), id("-g").ok()?.trim().to_owned()))
        });
        let (uid, gid) = user.ok_or("neither postgres nor nobody is a user here")?;
        chown(&socket_dir, Some(uid.parse()?), Some(gid.parse()?))?;
        let log = socket_dir.join("log");
        Ok(Some(Server { bin, uid, gid, data, socket_dir, log, postmaster: None }))
    }

    /// A run of one of the programs as the server's user.
    pub(super) fn program(&self, name: &str) -> Step {
        let (uid, gid) = (format!("--reuid={}", self.uid), format!("--regid={}", self.gid));
        Step::new("setpriv")
            .args([&uid, &gid, "--clear-groups", "--"])
            .arg(self.bin.join(name))
            .dir("/")
            .env("PGHOST", &self.socket_dir)
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres")
    }

    /// Makes the data directory with checksums.
    pub(super) fn initdb(&self) -> Outcome {
        fs::create_dir(&self.data)?;
        fs::set_permissions(&self.data, fs::Permissions::from_mode(0o700))?;
        chown(&self.data, Some(self.uid.parse()?), Some(self.gid.parse()?))?;
        self.program("initdb")
            .args(["--auth=trust", "--username=postgres", "--data-checksums", "--locale=C", "-D"])
            .arg(&self.data)
            .quiet()
    }

    /// Starts it and waits until it has recovered and answers.
    pub(super) fn start(&mut self) -> Outcome {
        let begin = Instant::now();
        loop {
            let log = File::options().create(true).append(true).open(&self.log)?;
            let mut postmaster = self
                .program("postgres")
                .arg("-D")
                .arg(&self.data)
                .arg("-k")
                .arg(&self.socket_dir)
                .args(["-c", "listen_addresses=", "-c", "shared_buffers=16MB"])
                .args(["-c", "max_wal_size=64MB", "-c", "checkpoint_timeout=30s"])
                .start(log)?;
            while postmaster.try_wait()?.is_none() {
                if self.program("pg_isready").arg("-q").output()?.status.success() {
                    self.postmaster = Some(postmaster);
                    return Ok(());
                }
                if begin.elapsed() > START_WAIT_MAX {
                    postmaster.kill()?;
                    postmaster.wait()?;
                    return Err(self.with_log("the server does not answer"));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            // Processes of a killed server hold its memory for a moment, and a new one refuses to start.
            if begin.elapsed() > START_WAIT_MAX / 3 {
                return Err(self.with_log("the server does not start"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Kills the server and all its processes with SIGKILL.
    pub(super) fn kill(&mut self) -> Outcome {
        let Some(mut postmaster) = self.postmaster.take() else { return Ok(()) };
        let id = postmaster.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        postmaster.kill()?;
        postmaster.wait()?;
        for child in children.split_whitespace() {
            // One that has noticed the end of its parent is gone already.
            let pid = Pid::from_raw(child.parse()?).ok_or("process 0 in /proc")?;
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(())
    }

    /// Ends it as an administrator would (fast shutdown), which must succeed.
    pub(super) fn stop(&mut self) -> Outcome {
        let Some(mut postmaster) = self.postmaster.take() else { return Ok(()) };
        kill_process(Pid::from_child(&postmaster), Signal::INT)?;
        let status = postmaster.wait()?;
        if status.success() { Ok(()) } else { Err(self.with_log(&format!("the server: {status}"))) }
    }

    /// Verifies the checksum of every page of a stopped server.
    pub(super) fn check_pages(&self) -> Outcome {
        self.program("pg_checksums").args(["--check", "-D"]).arg(&self.data).quiet()
    }

    /// The answer to a query, columns separated by `|`.
    pub(super) fn query(&self, query: &str) -> Result<String, Failure> {
        self.program("psql").args(["-X", "-A", "-t", "-q", "-c", query]).capture()
    }

    fn with_log(&self, what: &str) -> Failure {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(12).collect();
        let lines: Vec<_> = lines.into_iter().rev().collect();
        format!("{what}; its log ends with\n{}", lines.join("\n")).into()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Only after a failure; there is nothing left to report it to.
        let _ = self.kill();
    }
}

/// Directories with the server's programs, the newest version first.
fn bin_dirs() -> Vec<PathBuf> {
    let mut versions: Vec<u32> = fs::read_dir(VERSIONS_DIR)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.iter().map(|version| Path::new(VERSIONS_DIR).join(format!("{version}/bin"))).collect()
}
