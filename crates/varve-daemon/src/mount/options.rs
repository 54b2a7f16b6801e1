//! Mount options, as `-o` and /etc/fstab write them.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use varve::{Error, Result, size};
use varve_fs::{Atime, NewFiles};
use varve_fuse::Transport;

/// All mount options, for messages.
const KNOWN: &str = "ro rw noatime relatime strictatime diratime nodiratime allow_other noallow_other default_permissions suid nosuid dev nodev exec noexec symfollow nosymfollow \
                     lazytime sync async dirsync acl noacl memory=SIZE threads=N transport=auto|dev|uring passthrough nopassthrough newfiles=auto|small|large \
                     idlepoll noidlepoll giveway nogiveway private noprivate takeover hard soft timeo=SECONDS token_file=FILE follow_every=SECONDS \
                     defaults, and what only mount(8) reads (auto noauto nofail user users owner group _netdev x-*)";

/// How to mount a store.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Choices {
    /// Refuse every change.
    pub read_only: bool,
    /// How reads change the time of last access.
    pub atime: Atime,
    /// Listing a directory does not change its time of last access.
    pub no_dir_atime: bool,
    /// Let other users in; `None` does so exactly for root.
    pub allow_other: Option<bool>,
    /// Have the kernel check permissions even if only root gets in.
    pub default_permissions: bool,
    /// Ignore set-user-id and set-group-id bits.
    pub no_suid: bool,
    /// Ignore device nodes.
    pub no_dev: bool,
    /// Refuse to execute programs.
    pub no_exec: bool,
    /// Follow no symbolic links.
    pub no_symfollow: bool,
    /// Do not obey access control lists.
    pub no_acl: bool,
    /// Make every write durable before it returns.
    pub synchronous: bool,
    /// Make every change of names durable before it returns.
    pub synchronous_dirs: bool,
    /// Memory for memtables and caches, in bytes; `None` takes the default.
    pub memory_bytes: Option<u64>,
    /// How requests travel; `None` takes io_uring where the kernel offers it, else /dev/fuse.
    pub transport: Option<Transport>,
    /// Reader threads of /dev/fuse; `None` takes one per CPU, at most 16.
    pub threads: Option<NonZeroUsize>,
    /// Keep the kernel from reading and writing large files straight.
    pub no_passthrough: bool,
    /// Which new files begin as large ones.
    pub new_files: NewFiles,
    /// Whether idle CPUs poll during bursts of requests; `None` polls where that helps.
    pub idle_poll: Option<bool>,
    /// Keep threads of rings from yielding to their callers.
    pub no_give_way: bool,
    /// Fail if only this process and its children would see the mount.
    pub no_private: bool,
    /// Fence off a process of another machine that has the store on shared storage open.
    pub take_over: bool,
    /// Calls fail when a server does not answer in time.
    pub soft: bool,
    /// How long calls wait for a server if they may fail, in seconds; `None` takes the default.
    pub timeout_s: Option<u32>,
    /// The file with the secret that a server asks for.
    pub token_file: Option<PathBuf>,
    /// How often a mount with `ro` looks for later states of a store on shared storage; zero never looks, `None` takes the default.
    pub follow_every: Option<Duration>,
}

/// The longest time that calls may wait for a server with `soft`, in seconds: a day.
const TIMEOUT_S_MAX: u32 = 86_400;
/// Intervals at which a mount can follow a store.
const FOLLOW_EVERY: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
/// The interval if none is chosen.
const FOLLOW_EVERY_DEFAULT: Duration = Duration::from_secs(5);

/// The least memory a mount works with, in bytes.
const MEMORY_BYTES_MIN: u64 = 4 << 20;

impl Choices {
    /// Reads comma-separated options; a later one overrides an earlier one. With `sloppy` unknown ones are
    /// passed over, as mount(8)'s `-s` asks.
    pub fn parse(options: &str, sloppy: bool) -> Result<Choices> {
        let mut choices = Choices::default();
        for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            if !choices.apply(name, value)? && !sloppy {
                return Err(Error::usage(format!("`{option}` is no mount option of Varve"))
                    .hint(format!("known are {KNOWN}")));
            }
        }
        Ok(choices)
    }

    /// Whether some options are more than flags: only flags of a mount in use can change.
    pub fn is_more_than_flags(&self) -> bool {
        let Choices { read_only, no_suid, no_dev, no_exec, no_symfollow, synchronous, .. } = *self;
        let flags = Choices {
            read_only,
            no_suid,
            no_dev,
            no_exec,
            no_symfollow,
            synchronous,
            ..Choices::default()
        };
        *self != flags
    }

    /// Fails if options of mounts of a server would have no effect.
    pub(super) fn check_server(&self, has_server: bool) -> Result<()> {
        let has_times = self.soft || self.timeout_s.is_some();
        if self.token_file.is_some() && !has_server {
            return Err(Error::usage("`token_file` is an option of mounts of a server")
                .hint("leave it out: a store that is mounted here asks for no secret"));
        }
        if has_times && !has_server {
            return Err(Error::usage("`soft` and `timeo` are options of mounts of a server")
                .hint("leave them out: a store that is mounted here waits for no server"));
        }
        if self.timeout_s.is_some() && !self.soft {
            return Err(Error::usage("`timeo` has no effect without `soft`").hint(
                "add `soft` to have calls fail after that time, or leave `timeo` out to have programs wait",
            ));
        }
        Ok(())
    }

    /// How often the mount follows the owner of its store on shared storage; `None` if it does not.
    pub(crate) fn follow_interval(&self) -> Option<Duration> {
        let every = self.follow_every.unwrap_or(FOLLOW_EVERY_DEFAULT);
        (self.read_only && !every.is_zero()).then_some(every)
    }

    /// Applies one option; false if it is unknown.
    fn apply(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("noatime", None) => self.atime = Atime::Noatime,
            ("relatime" | "atime", None) => self.atime = Atime::Relatime,
            ("strictatime" | "norelatime", None) => self.atime = Atime::Strict,
            ("nostrictatime", None) => self.atime = Atime::Relatime,
            ("diratime", None) => self.no_dir_atime = false,
            ("nodiratime", None) => self.no_dir_atime = true,
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("nosuid", None) => self.no_suid = true,
            ("suid", None) => self.no_suid = false,
            ("nodev", None) => self.no_dev = true,
            ("dev", None) => self.no_dev = false,
            ("noexec", None) => self.no_exec = true,
            ("exec", None) => self.no_exec = false,
            ("nosymfollow", None) => self.no_symfollow = true,
            ("symfollow", None) => self.no_symfollow = false,
            ("acl", None) => self.no_acl = false,
            ("noacl", None) => self.no_acl = true,
            ("sync", None) => self.synchronous = true,
            ("async", None) => self.synchronous = false,
            ("dirsync", None) => self.synchronous_dirs = true,
            ("passthrough", None) => self.no_passthrough = false,
            ("nopassthrough", None) => self.no_passthrough = true,
            ("idlepoll", None) => self.idle_poll = Some(true),
            ("noidlepoll", None) => self.idle_poll = Some(false),
            ("giveway", None) => self.no_give_way = false,
            ("nogiveway", None) => self.no_give_way = true,
            ("private", None) => self.no_private = false,
            ("noprivate", None) => self.no_private = true,
            ("takeover", None) => self.take_over = true,
            ("hard", None) => self.soft = false,
            ("soft", None) => self.soft = true,
            ("token_file", Some(text)) => self.token_file = Some(token_file(text)?),
            ("timeo", Some(text)) => self.timeout_s = Some(timeout_s(text)?),
            ("memory", Some(text)) => self.memory_bytes = Some(memory(text)?),
            ("threads", Some(text)) => {
                let threads = text.parse().map_err(|_| {
                    Error::usage(format!("`{text}` is no number of threads"))
                        .hint("threads=N takes 1 or more; else there is one per CPU, at most 16")
                })?;
                self.threads = Some(threads);
            }
            ("follow_every", Some(text)) => self.follow_every = Some(follow_every(text)?),
            ("transport", Some(text)) => self.transport = transport(text)?,
            ("newfiles", Some(text)) => self.new_files = new_files(text)?,
            // Rights of users imply these, as in mount(8).
            ("user" | "users" | "owner" | "group", _) => {
                self.no_suid = true;
                self.no_dev = true;
                self.no_exec |= matches!(name, "user" | "users");
            }
            ("default_permissions", None) => self.default_permissions = true,
            ("defaults", None) => {}
            // Times reach the disk with the next sync in any case.
            ("lazytime" | "nolazytime", None) => {}
            // mount(8) has these; they mean nothing here, as the kernel has no mandatory locks any more and each change counts.
            ("mand" | "nomand" | "iversion" | "noiversion" | "silent" | "loud", None) => {}
            // For mount(8) and systemd only.
            ("auto" | "noauto" | "nofail" | "nouser" | "_netdev" | "comment", _) => {}
            _ => return Ok(name.starts_with("x-") || name.starts_with("X-")),
        }
        Ok(true)
    }
}

/// The path of a file with a secret. Who mounts in the background may be in another directory.
fn token_file(text: &str) -> Result<PathBuf> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(Error::usage(format!("`{text}` is no absolute path"))
        .hint("token_file= takes the whole path of a file"))
}

/// A number of seconds to wait for a server.
fn timeout_s(text: &str) -> Result<u32> {
    let seconds = text.parse().ok().filter(|seconds| (1..=TIMEOUT_S_MAX).contains(seconds));
    seconds.ok_or_else(|| {
        Error::usage(format!("`{text}` is no time to wait for a server"))
            .hint(format!("timeo=SECONDS takes 1 to {TIMEOUT_S_MAX}"))
    })
}

/// Seconds between two looks for later states; 0 for none.
fn follow_every(text: &str) -> Result<Duration> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let allowed = seconds.filter(|every| every.is_zero() || FOLLOW_EVERY.contains(every));
    allowed.ok_or_else(|| {
        Error::usage(format!("`{text}` is no interval to follow a store"))
            .hint("follow_every= takes seconds from 0.1 to 3600, or 0 to stay at one state")
    })
}

/// How new files begin, by name.
fn new_files(text: &str) -> Result<NewFiles> {
    match text {
        "auto" => Ok(NewFiles::Auto),
        "small" => Ok(NewFiles::Small),
        "large" => Ok(NewFiles::Large),
        _ => Err(Error::usage(format!("`{text}` is no choice for new files"))
            .hint("newfiles= takes auto (by the last files of the directory), small or large")),
    }
}

/// A transport by name.
fn transport(text: &str) -> Result<Option<Transport>> {
    match text {
        "auto" => Ok(None),
        "dev" => Ok(Some(Transport::Dev)),
        "uring" => Ok(Some(Transport::Uring)),
        _ => Err(Error::usage(format!("`{text}` is no transport"))
            .hint("transport= takes auto (io_uring where the kernel offers it), dev or uring")),
    }
}

/// A memory size that is enough to work with.
pub fn memory(text: &str) -> Result<u64> {
    match size::parse(text)? {
        bytes if bytes >= MEMORY_BYTES_MIN => Ok(bytes),
        bytes => Err(Error::usage(format!("{} of memory are not enough", size::show(bytes)))
            .hint(format!("give at least {}; 256M is the default", size::show(MEMORY_BYTES_MIN)))),
    }
}

#[cfg(test)]
mod tests {
    use varve_testkit::rng::Rng;

    use super::*;

    #[test]
    fn options_of_fstab() {
        let choices =
            Choices::parse("rw,noatime,nofail,x-systemd.automount,memory=64M,_netdev", false)
                .unwrap();
        assert_eq!(choices.memory_bytes, Some(64 << 20));
        assert_eq!(choices.atime, Atime::Noatime);
        assert!(!choices.read_only);
        assert_eq!(Choices::parse("defaults", false).unwrap(), Choices::default());
        let alone = Choices::parse("noallow_other,default_permissions", false).unwrap();
        assert!(alone.allow_other == Some(false) && alone.default_permissions);
        assert_eq!(Choices::parse("", false).unwrap(), Choices::default());
        let transport = |options| Choices::parse(options, false).unwrap().transport;
        assert_eq!(transport("transport=uring"), Some(Transport::Uring));
        assert_eq!(transport("transport=dev"), Some(Transport::Dev));
        assert_eq!(transport("transport=dev,transport=auto"), None);
        let new_files = |options| Choices::parse(options, false).unwrap().new_files;
        assert_eq!(new_files("newfiles=large"), NewFiles::Large);
        assert_eq!(new_files("newfiles=large,newfiles=small"), NewFiles::Small);
        assert_eq!(new_files("newfiles=small,newfiles=auto"), NewFiles::Auto);
    }

    #[test]
    fn only_mounts_to_read_follow() {
        let interval = |options| Choices::parse(options, false).unwrap().follow_interval();
        assert_eq!(interval("ro"), Some(Duration::from_secs(5)));
        assert_eq!(interval("ro,follow_every=0.5"), Some(Duration::from_millis(500)));
        assert_eq!(interval("ro,follow_every=0"), None);
        assert_eq!(interval("rw"), None);
    }

    #[test]
    fn the_last_one_counts() {
        let parse = |options| Choices::parse(options, false).unwrap();
        assert!(parse("nodiratime").no_dir_atime && !parse("nodiratime,diratime").no_dir_atime);
        assert!(parse("dirsync").synchronous_dirs && !parse("dirsync").synchronous);
        assert_eq!(parse("noatime,strictatime").atime, Atime::Strict);
        assert_eq!(parse("strictatime,nostrictatime").atime, Atime::Relatime);
        assert!(!Choices::parse("ro,rw", false).unwrap().read_only);
        assert!(Choices::parse("rw,ro", false).unwrap().read_only);
        let users = Choices::parse("user,exec", false).unwrap();
        assert!(users.no_suid && users.no_dev && !users.no_exec);
        assert!(parse("nosymfollow").no_symfollow && !parse("nosymfollow,symfollow").no_symfollow);
        assert!(!parse("nosymfollow").is_more_than_flags());
        assert!(parse("soft").soft && !parse("soft,hard").soft && parse("hard,soft").soft);
        assert_eq!(parse("timeo=7,soft,timeo=90").timeout_s, Some(90));
    }

    #[test]
    fn some_options_are_for_mounts_of_a_server() {
        let check = |options, has_server| {
            Choices::parse(options, false).unwrap().check_server(has_server).is_ok()
        };
        assert!(check("soft", true) && check("soft,timeo=5", true) && check("hard", true));
        assert!(check("hard", false) && !check("soft", false) && !check("timeo=5", false));
        assert!(!check("timeo=5", true) && !check("soft,timeo=5,hard", true));
        assert!(check("token_file=/t", true) && !check("token_file=/t", false));
    }

    #[test]
    fn unknown_and_malformed_options_are_refused() {
        let error = Choices::parse("ro,nobarrier", false).unwrap_err();
        assert!(error.message().contains("nobarrier") && error.to_string().contains("noatime"));
        assert!(Choices::parse("ro,nobarrier", true).unwrap().read_only);
        for wrong in [
            "ro=1",
            "transport",
            "transport=pipe",
            "memory",
            "memory=x",
            "memory=1K",
            "threads=0",
            "newfiles",
            "newfiles=huge",
            "soft=1",
            "timeo",
            "timeo=0",
            "timeo=1.5",
            "timeo=86401",
            "token_file",
            "token_file=relative",
            "follow_every",
            "follow_every=-1",
            "follow_every=0.01",
            "follow_every=nan",
            "follow_every=1e9",
        ] {
            assert!(Choices::parse(wrong, false).is_err(), "{wrong}");
        }
    }

    /// Words of options in any order and damaged in any way: an answer, and never less memory or fewer threads than
    /// a mount works with.
    #[test]
    fn arbitrary_options_are_read_or_refused() {
        const PARTS: &[&str] = &[
            "ro",
            "noatime",
            "memory",
            "threads",
            "transport",
            "user",
            "x-",
            "=",
            "=",
            "=",
            ",",
            ",",
            ",",
            "64M",
            "1.5G",
            "4096",
            "0",
            "-1",
            "18446744073709551615",
            "99999999999P",
            "1e9",
            ".",
            "KiB",
            "uring",
            " ",
            "\0",
            "\u{e9}",
            "\u{1f600}",
            "%",
        ];
        let mut rng = Rng::new(20_261_120);
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..50_000 {
            let text: String = (0..rng.below(8)).map(|_| *rng.pick(PARTS)).collect();
            match Choices::parse(&text, false) {
                Ok(choices) => {
                    accepted += 1;
                    assert!(choices.memory_bytes.is_none_or(|bytes| bytes >= MEMORY_BYTES_MIN));
                    assert_eq!(Choices::parse(&text, true).unwrap(), choices, "{text:?}");
                    assert_eq!(Choices::parse(&format!("{text},{text}"), false).unwrap(), choices);
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.message().is_empty(), "{text:?}");
                }
            }
        }
        assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
    }
}
