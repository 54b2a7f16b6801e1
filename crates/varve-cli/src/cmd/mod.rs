//! The command line: one module for each subcommand.

mod clone;
mod cluster;
mod completions;
mod demo;
mod design;
mod du;
mod dump;
mod format;
mod fsck;
mod gc;
pub(crate) mod helper;
mod inspect;
mod kv;
mod load;
mod man;
mod mount;
mod nfs;
mod quota;
mod serve;
mod snapshot;
mod stats;
mod status;
mod storage;
mod tune;
mod txn;
mod umount;
mod upgrade;
mod version;

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Parser, Subcommand};
use varve::{Result, anchor};

/// Reads a path, or the address of a store, such as `s3://bucket/prefix`: that is the path of its anchor.
fn store_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new()
        .try_map(|text| anchor::store_path(&text).map_err(|error| error.message().to_owned()))
}

/// Reads a path or the address of a store ([`store_path`]), or the address of a metadata server, such as `varve://host/dir`.
fn mount_source() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text| match varve_daemon::mount::is_server(&text) {
        true => Ok(PathBuf::from(text)),
        false => anchor::store_path(&text).map_err(|error| error.message().to_owned()),
    })
}

/// Exit statuses and fstab, below every help text of the program itself.
const AFTER_HELP: &str = "Exit status: 0 success, 1 failed, 2 wrong command line, 3 fsck repaired all that it found,\n\
    4 fsck found problems that are still there, 5 a transaction met others and is not committed, 130 interrupted. As a mount\n\
    helper also 32: the mount failed.\n\n\
    For `mount -t fuse.varve STORE DIR` and /etc/fstab:\n  \
    ln -s \"$(command -v varve)\" /sbin/mount.fuse.varve\n  \
    /srv/store  /mnt/files  fuse.varve  defaults,nofail  0  0";

/// A POSIX file system that makes names, attributes and small files fast
#[derive(Parser)]
#[command(name = "varve", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Format a store in a directory
    Format(format::Arguments),
    /// Mount a store on a directory
    Mount(mount::Arguments),
    /// Serve a store over NFS
    Nfs(nfs::Arguments),
    /// Serve a store to mounts on other machines
    Serve(serve::Arguments),
    /// Unmount a directory and wait until its store is closed
    Umount(umount::Arguments),
    /// Replace the program that serves a mount, while it is in use
    Upgrade(upgrade::Arguments),
    /// Show the status of a store, a mount or a server
    Status(status::Arguments),
    /// Show what a mount or a server does: requests, their times, and the work of the engine
    Stats(stats::Arguments),
    /// Show the usage of directory trees at once, without a walk
    Du(du::Arguments),
    /// Set and show limits on directory trees
    Quota(quota::Arguments),
    /// Change files in a transaction: all changes are committed at once, or none
    Txn(txn::Arguments),
    /// Create, list and delete snapshots of a store, send them and roll back to them
    Snapshot(snapshot::Arguments),
    /// Clone a file or a directory tree at once, whatever its size
    Clone(clone::Arguments),
    /// Check a store that is not mounted, and repair it on request
    Fsck(fsck::Arguments),
    /// Write a whole store that is not mounted as lines of JSON
    Dump(dump::Arguments),
    /// Format a store and fill it from a dump
    Load(load::Arguments),
    /// Store pairs of keys and values in dictionaries, beside the files
    Kv(kv::Arguments),
    /// Print the contents of a file of a store
    Inspect(inspect::Arguments),
    /// Give back room that a store does not need, while it is not mounted
    Gc(gc::Arguments),
    /// Choose the design of a store by an analytic model, or change it
    Tune(tune::Arguments),
    /// Show what Varve does, with figures, and leave nothing behind
    Demo(demo::Arguments),
    /// Show what a server and mounts of it do
    Cluster(cluster::Arguments),
    /// Show the version
    Version(version::Arguments),
    /// Write a completion script for a shell
    Completions(completions::Arguments),
    /// Write manual pages
    Man(man::Arguments),
}

impl CommandLine {
    /// Runs the subcommand.
    pub(crate) fn run(self) -> Result<()> {
        match self.command {
            Command::Format(arguments) => format::run(&arguments),
            Command::Mount(arguments) => mount::run(&arguments),
            Command::Nfs(arguments) => nfs::run(&arguments),
            Command::Serve(arguments) => serve::run(&arguments),
            Command::Umount(arguments) => umount::run(&arguments),
            Command::Upgrade(arguments) => upgrade::run(&arguments),
            Command::Status(arguments) => status::run(&arguments),
            Command::Stats(arguments) => stats::run(&arguments),
            Command::Du(arguments) => du::run(&arguments),
            Command::Quota(arguments) => quota::run(&arguments),
            Command::Txn(arguments) => txn::run(&arguments),
            Command::Snapshot(arguments) => snapshot::run(&arguments),
            Command::Clone(arguments) => clone::run(&arguments),
            Command::Fsck(arguments) => fsck::run(&arguments),
            Command::Dump(arguments) => dump::run(&arguments),
            Command::Load(arguments) => load::run(&arguments),
            Command::Kv(arguments) => kv::run(&arguments),
            Command::Inspect(arguments) => inspect::run(&arguments),
            Command::Gc(arguments) => gc::run(&arguments),
            Command::Tune(arguments) => tune::run(&arguments),
            Command::Demo(arguments) => demo::run(&arguments),
            Command::Cluster(arguments) => cluster::run(&arguments),
            Command::Version(arguments) => version::run(&arguments),
            Command::Completions(arguments) => completions::run(&arguments),
            Command::Man(arguments) => man::run(&arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }

    /// The subcommands without `--json`: they print nothing, or something that has a form of its own.
    const WITHOUT_WORDS: [&str; 15] = [
        "clone",
        "completions",
        "dump",
        "kv create",
        "kv delete",
        "kv drop",
        "kv get",
        "kv put",
        "quota clear",
        "snapshot delete",
        "snapshot send",
        "txn abort",
        "txn commit",
        "txn enter",
        "txn run",
    ];

    /// `txn begin`, `snapshot create` and others had output for people only.
    #[test]
    fn what_tells_something_can_tell_it_to_programs() {
        use clap::CommandFactory;
        let mut silent = Vec::new();
        let mut pending = vec![(String::new(), CommandLine::command())];
        while let Some((name, command)) = pending.pop() {
            let below = command.get_subcommands().map(|below| {
                (format!("{name} {}", below.get_name()).trim().to_owned(), below.clone())
            });
            pending.extend(below);
            if !command.has_subcommands()
                && command.get_arguments().all(|argument| argument.get_id() != "json")
            {
                silent.push(name);
            }
        }
        silent.sort();
        assert_eq!(silent, WITHOUT_WORDS);
    }
}
