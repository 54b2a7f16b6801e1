//! `varve mount`: serve a store on a directory.

use std::path::{Path, PathBuf};

use clap::Args;
use log::LevelFilter;
use varve::Result;
use varve_daemon::holder::words_of_private;
use varve_daemon::logging;
use varve_daemon::mount::{self, Choices, Ready};
use varve_daemon::upgrade::Abilities;

use crate::cmd::mount_source;
use crate::cmd::storage::StorageOptions;
use crate::output;

const OPTIONS: &str = "\
Mount options; of two opposites the last counts:
  ro, rw                      refuse every change, or not
  noatime, relatime, strictatime, lazytime
                              when reading moves the time of last access [default: relatime]
  diratime, nodiratime        whether listing a directory moves its own, too [default: it does]
  allow_other, noallow_other  let other users in, or not [default: let them in if root mounts]
  default_permissions         have permissions checked with noallow_other, too
  suid, nosuid, dev, nodev, exec, noexec, symfollow, nosymfollow
                              as in mount(8)
  sync, async                 make each write durable before it returns, or not
  dirsync                     make each change of names durable before it returns
  acl, noacl                  obey access control lists, or not
  memory=SIZE                 memory for memtables and caches, 4M at least; --memory overrides it
  transport=auto|dev|uring    how requests travel [default: io_uring where the kernel offers it, else /dev/fuse]
  threads=N                   readers of /dev/fuse [default: one per CPU, at most 16]
  passthrough, nopassthrough  have the kernel read and write large files directly, or not
  newfiles=auto|small|large   whether new files begin as large ones [default: as the last files of their directory]
  idlepoll, noidlepoll        have idle CPUs poll during bursts of requests, or not [default: in virtual machines]
  giveway, nogiveway          have the daemon's threads yield to programs meanwhile, or not
  takeover                    fence off a process of another machine that has the store open; only for stores on shared storage
  hard, soft                  of a server: have programs wait for as long as it does not answer, or get EIO after timeo [default: hard]
  token_file=FILE             of a server: the file with the secret that it asks for, by its whole path
  timeo=SECONDS               of a server, with soft: how long a call waits for its answer [default: 60]
  follow_every=SECONDS        with ro: look so often for what another machine has changed on shared storage; 0: stay at one state [default: 5]
  private, noprivate          mount for the daemon and its children alone if no other way is allowed, or fail
  defaults, auto, noauto, nofail, user, users, owner, group, _netdev, x-*
                              as in fstab(5)";

/// The arguments.
#[derive(Args)]
#[command(after_help = OPTIONS)]
pub(crate) struct Arguments {
    /// The store: a directory, or an address such as s3://bucket/prefix or, of a server, varve://HOST[:PORT][/DIR]
    #[arg(value_parser = mount_source())]
    store: PathBuf,
    /// The directory to mount it on
    dir: PathBuf,
    /// Stay in the foreground, with messages on the terminal
    #[arg(short, long)]
    foreground: bool,
    /// Mount options, separated by commas; the list is below
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Memory for memtables and caches, 4M at least [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = mount::memory)]
    memory: Option<u64>,
    /// Fence off a process of another machine that has the store on shared storage open; its programs get EIO from then on
    #[arg(long)]
    take_over: bool,
    /// With `-o ro`, look so often for what another machine has changed on shared storage; 0: stay at one state [default: 5]
    #[arg(long, value_name = "SECONDS")]
    follow_every: Option<String>,
    #[command(flatten)]
    storage: StorageOptions,
    /// Print how it was mounted, and write more messages to the log
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Run as the process in the background
    #[arg(long, hide = true, conflicts_with = "foreground")]
    daemon: bool,
    /// Take over the mount of the previous program
    #[arg(long, hide = true)]
    successor: bool,
    /// Print which mounts this program can take over
    #[arg(long, hide = true, conflicts_with = "successor")]
    probe: bool,
}

/// Mounts the store.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut options = arguments.options.join(",");
    if let Some(bytes) = arguments.memory {
        options.push_str(&format!(",memory={bytes}"));
    }
    if arguments.take_over {
        options.push_str(",takeover");
    }
    if let Some(seconds) = &arguments.follow_every {
        options.push_str(&format!(",follow_every={seconds}"));
    }
    if !arguments.successor && !arguments.daemon {
        arguments.storage.apply(&arguments.store)?;
    }
    let level = if arguments.verbose { LevelFilter::Debug } else { LevelFilter::Info };
    if arguments.successor {
        return mount::take_over(|store| {
            if arguments.daemon {
                // A store on read-only storage has no log.
                drop(logging::to_store(store, level));
            } else {
                logging::to_stderr(level);
            }
            Choices::parse(&options, false)
        });
    }
    let choices = Choices::parse(&options, false)?;
    if arguments.probe {
        return output::json(&Abilities::of_this_version());
    }
    if arguments.daemon {
        return mount::daemon(&arguments.store, &arguments.dir, &choices, level);
    }
    if arguments.foreground {
        logging::to_stderr(level);
        let show = |ready: &Ready| show(ready, arguments.verbose, arguments.json);
        return mount::serve(&arguments.store, &arguments.dir, &choices, show);
    }
    let ready = in_background(&arguments.store, &arguments.dir, &options, arguments.verbose)?;
    show(&ready, arguments.verbose, arguments.json);
    Ok(())
}

/// Mounts in the background; every failure gets a hint.
pub(crate) fn in_background(
    store: &Path,
    dir: &Path,
    options: &str,
    verbose: bool,
) -> Result<Ready> {
    mount::start_in_background(store, dir, options, verbose)
        .map_err(|error| error.or_hint("`varve mount -f` shows all messages on the terminal"))
}

/// Prints how it was mounted.
pub(super) fn show(ready: &Ready, verbose: bool, json: bool) {
    if json {
        // The value has only text and numbers; a closed output is not this mount's failure.
        drop(output::json(ready));
        return;
    }
    if verbose || !ready.refusals.is_empty() {
        output::line(format!(
            "{} is mounted on {} by {} (process {})",
            ready.store.display(),
            ready.dir.display(),
            ready.method,
            ready.pid
        ));
        for refusal in &ready.refusals {
            output::line(format!("not by {refusal}"));
        }
    }
    if ready.is_private {
        output::line(format!(
            "only process {} sees it: {}",
            ready.pid,
            words_of_private(ready.pid)
        ));
    }
}
