//! Steps on the tree of all kinds of files ([`kinds`]): each way to copy it keeps everything, and the programs
//! that show owners, lists and attributes say the same on both sides.

use std::fs;
use std::path::Path;

use super::kinds;
use super::manifest::Manifest;
use super::steps::{Context, Side, rsync};
use crate::run::{Failure, Outcome, Step, there_is};

/// Programs that show what no other step looks at, with options; where one is missing, what it would show is compared only by
/// [`Manifest`].
const SHOWING: [[&str; 2]; 2] = [
    ["getfacl", "--absolute-names --numeric --physical"],
    ["getfattr", "--absolute-names --no-dereference --dump --match=- --encoding=hex"],
];

/// What is not run because a program is not installed.
pub(super) fn missing_programs() -> impl Iterator<Item = String> {
    let missing = SHOWING.into_iter().filter(|[program, _]| !there_is(program));
    missing.map(|[program, _]| format!("{program}: not installed"))
}

/// Makes the tree.
pub(super) fn make(context: &Context, side: &Side) -> Result<String, Failure> {
    kinds::make(&side.path("kinds"), &context.able)?;
    Ok(String::new())
}

/// What is said of the tree as it was made.
pub(super) fn list(_: &Context, side: &Side) -> Result<String, Failure> {
    shown(side, "kinds")
}

/// `cp -a`, which also keeps holes.
pub(super) fn copy(_: &Context, side: &Side) -> Result<String, Failure> {
    let (kinds, copy) = (side.path("kinds"), side.path("kinds-cp"));
    Step::new("cp").arg("-a").arg(&kinds).arg(&copy).quiet()?;
    Manifest::of(&kinds, true)?.compare(&Manifest::of(&copy, true)?)?;
    let said = shown(side, "kinds-cp")?;
    fs::remove_dir_all(copy)?;
    Ok(said)
}

/// What archives do not have: sockets, and several names of what is no regular file nor symbolic link.
const NOT_IN_ARCHIVES: [&str; 3] = ["specials/socket", "links/left/fifo", "links/right/fifo"];

/// Into an archive and out of it.
pub(super) fn tar(_: &Context, side: &Side) -> Result<String, Failure> {
    let (archive, copy) = (side.outside("kinds.tar"), side.path("kinds-tar"));
    let tar = |mode: &str| {
        let options = ["--format=pax", "--acls", "--xattrs", "--xattrs-include=*"];
        let tar = Step::new("tar").arg(mode).args(options).args(["--numeric-owner", "--sparse"]);
        tar.arg("--file").arg(&archive).arg("-C")
    };
    let excluded = NOT_IN_ARCHIVES.map(|path| format!("--exclude=./{path}"));
    tar("--create").arg(side.path("kinds")).args(excluded).arg(".").quiet()?;
    fs::create_dir(&copy)?;
    tar("--extract").arg(&copy).args(["--preserve-permissions", "--same-owner"]).quiet()?;
    tar("--compare").arg(&copy).quiet()?;
    let mut kinds = Manifest::of(&side.path("kinds"), true)?;
    NOT_IN_ARCHIVES.iter().for_each(|path| kinds.leave_out(path));
    kinds.compare(&Manifest::of(&copy, true)?)?;
    let said = shown(side, "kinds-tar")?;
    fs::remove_dir_all(copy)?;
    fs::remove_file(archive)?;
    Ok(said)
}

/// To a plain directory.
pub(super) fn rsync_out(_: &Context, side: &Side) -> Result<String, Failure> {
    rsync_and_compare(&side.path("kinds"), &side.outside("kinds"))?;
    Ok(String::new())
}

/// From there, to a directory that is not there yet.
pub(super) fn rsync_back(_: &Context, side: &Side) -> Result<String, Failure> {
    rsync_and_compare(&side.outside("kinds"), &side.path("kinds-back"))?;
    shown(side, "kinds-back")
}

/// To where everything is: rsync, who compares as well, finds nothing to do.
pub(super) fn rsync_again(_: &Context, side: &Side) -> Result<String, Failure> {
    let from = format!("{}/", side.outside("kinds").display());
    let step = Step::new("rsync").args(["-aHAX", "--itemize-changes", "--dry-run"]).arg(from);
    let changes = step.arg(side.path("kinds-back")).capture()?;
    fs::remove_dir_all(side.outside("kinds"))?;
    if changes.is_empty() { Ok(changes) } else { Err(format!("changes:\n{changes}").into()) }
}

fn rsync_and_compare(from: &Path, to: &Path) -> Outcome {
    rsync(from, to)?;
    Manifest::of(from, true)?.compare(&Manifest::of(to, true)?)
}

/// What the programs say of the tree `name`, in the order of names.
fn shown(side: &Side, name: &str) -> Result<String, Failure> {
    let mut said = String::new();
    for [program, options] in SHOWING.into_iter().filter(|[program, _]| there_is(program)) {
        let script =
            format!("find . -print0 | LC_ALL=C sort -z | LC_ALL=C xargs -0 {program} {options}");
        said += &Step::new("sh").args(["-c", &script]).dir(side.path(name)).capture()?;
    }
    Ok(said)
}
