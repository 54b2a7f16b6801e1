//! The mount helper: what mount(8) runs for `mount -t fuse.varve STORE DIR -o OPTIONS` and for fstab.
//!
//! ```text
//! mount.fuse.varve STORE DIR [-sfnv] [-N namespace] [-o options] [-t type]
//! ```
//!
//! Where there is no link of that name mount(8) runs the helper of libfuse, mount.fuse, which runs
//! `varve STORE DIR -o OPTIONS`: a store's path, or the address of a server, in the place of a verb asks for the helper too.
//!
//! `mount -o remount,ro DIR` comes here as the option `remount`, and changes the flags of the mount that is
//! there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use varve::{Error, Result, exit_status};
use varve_daemon::mount::{self as mounts, Choices, DaemonSettings};

use super::mount;
use crate::output;

/// Names under which this program is the helper.
const HELPER_NAMES: &[&str] = &["mount.varve", "mount.fuse.varve"];

/// Options that the kernel shows for any mount; mount(8) repeats them when it remounts.
const SHOWN: &[&str] = &[
    "user_id",
    "group_id",
    "rootmode",
    "fd",
    "max_read",
    "blksize",
    "allow_other",
    "default_permissions",
    "seclabel",
];

/// The arguments of mount(8).
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    store: PathBuf,
    dir: PathBuf,
    options: String,
    is_sloppy: bool,
    is_fake: bool,
    is_verbose: bool,
    is_remount: bool,
}

/// The arguments, if this program was run as the helper.
pub(crate) fn arguments() -> Option<Vec<OsString>> {
    let mut arguments = std::env::args_os();
    let program = arguments.next()?;
    let name = Path::new(&program).file_name()?.to_str()?;
    let arguments: Vec<OsString> = arguments.collect();
    let is_source = |first: &OsString| Path::new(first).is_absolute() || mounts::is_server(first);
    let is_place = arguments.first().is_some_and(is_source);
    (is_place || HELPER_NAMES.contains(&name)).then_some(arguments)
}

/// Mounts in the background, visible for all processes: mount(8) would take a mount that only its daemon sees for a visible one.
pub(crate) fn run(arguments: &[OsString]) -> Result<()> {
    let request = parse(arguments)?;
    let failed = |error: Error| error.with_status(exit_status::MOUNT_FAILED);
    // The daemon reads them again, without knowing of -s: give it only what is known. A remount comes with
    // what the kernel shows of the mount (user_id and the like), which is not for us.
    let known: Vec<&str> = request
        .options
        .split(',')
        .filter(|option| {
            !(request.is_sloppy || request.is_remount) || Choices::parse(option, false).is_ok()
        })
        .collect();
    let known = known.join(",");
    let choices = Choices::parse(&known, false).map_err(failed)?;
    if request.is_fake {
        return Ok(());
    }
    if request.is_remount {
        mounts::remount(&request.dir, &choices).map_err(failed)?;
        tell_of_kept(&request.dir, &request.options);
        return Ok(());
    }
    // What mount(8) is told to be mounted has to be there for everybody.
    let options = known + ",noprivate";
    let Request { store, dir, is_verbose, .. } = &request;
    let ready = mount::in_background(store, dir, &options, *is_verbose).map_err(failed)?;
    mount::show(&ready, *is_verbose, false);
    Ok(())
}

/// Prints which options a remount has not changed. They are no mistake, as some come from /etc/fstab.
fn tell_of_kept(dir: &Path, options: &str) {
    let began = DaemonSettings::of(dir);
    for option in options.split(',') {
        let name = option.split('=').next().unwrap_or_default();
        match Choices::parse(option, false) {
            _ if SHOWN.contains(&name) => {}
            Ok(choices) if began.agrees_with(&choices) => {}
            Ok(choices) if choices.is_more_than_flags() => {
                output::line(format!(
                    "`{option}` changes nothing now, only when the store is mounted"
                ));
            }
            Ok(_) => {}
            Err(error) => output::line(format!("passed over: {}", error.message())),
        }
    }
}

fn parse(arguments: &[OsString]) -> Result<Request> {
    let usage = || {
        Error::usage("usage: mount.fuse.varve STORE DIR [-sfnv] [-o OPTIONS]")
            .hint("mount(8) runs the program by this name; run `varve mount` by hand")
    };
    let mut request = Request::default();
    let mut places = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-o") => {
                let value = arguments.next().and_then(|value| value.to_str()).ok_or_else(usage)?;
                for option in value.split(',') {
                    match option {
                        "remount" => request.is_remount = true,
                        option => request.options = [&request.options, option].join(","),
                    }
                }
            }
            Some("-t" | "-N") => drop(arguments.next().ok_or_else(usage)?),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        's' => request.is_sloppy = true,
                        'f' => request.is_fake = true,
                        'v' => request.is_verbose = true,
                        'n' => {}
                        _ => return Err(usage()),
                    }
                }
            }
            _ => places.push(PathBuf::from(argument)),
        }
    }
    let [store, dir] = <[PathBuf; 2]>::try_from(places).map_err(|_| usage())?;
    Ok(Request { store, dir, ..request })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_words_of_mount_are_understood() {
        let request = parse(&words("/srv/s /mnt -sn -o rw,noatime -t fuse.varve")).unwrap();
        assert_eq!(request.store, PathBuf::from("/srv/s"));
        assert_eq!(request.dir, PathBuf::from("/mnt"));
        assert!(request.is_sloppy && !request.is_fake);
        assert!(request.options.ends_with("rw,noatime") && !request.is_remount);
        let again = parse(&words("/srv/s /mnt -o rw,remount -o ro")).unwrap();
        assert!(again.is_remount && again.options.ends_with("rw,ro"));
    }

    #[test]
    fn a_wrong_call_is_a_usage_error() {
        for line in ["/srv/s", "/srv/s /mnt /x", "/srv/s /mnt -o", "/srv/s /mnt -z"] {
            assert_eq!(parse(&words(line)).unwrap_err().status(), exit_status::USAGE, "{line}");
        }
    }
}
