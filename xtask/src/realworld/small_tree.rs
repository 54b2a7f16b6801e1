//! A small tree of real and of awkward files, as a tarball.
//!
//! The sources of this repository, and generated: files of every size around the limits of inline data, of
//! chunks and of large files; names that are long, odd or not UTF-8; symbolic links of every length; hard
//! links; sparse files; deep and wide directories; extended attributes; odd modes and old times.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::XattrFlags;

use crate::machine::Scratch;
use crate::random::Random;
use crate::run::{Failure, Outcome, Step};

/// File sizes around what a file system may treat differently.
const SIZES: &[usize] = &[
    0,
    1,
    511,
    512,
    513,
    4095,
    4096,
    4097,
    16_383,
    16_384,
    16_385,
    65_535,
    65_536,
    65_537,
    70_000,
    200_000,
    1 << 20,
    5 << 20,
];

/// Levels of the deep directory.
const DEPTH: usize = 60;

/// Files of the wide directory.
const WIDTH: usize = 3000;

/// Makes the tree in `scratch` and returns its tarball.
pub(super) fn tarball(repository: &Path, scratch: &Scratch) -> Result<PathBuf, Failure> {
    let top = scratch.dir("input/tree")?;
    sources(repository, &top.join("sources"))?;
    files(&top.join("files"))?;
    names(&top.join("names"))?;
    links(&top.join("links"))?;
    shapes(&top.join("shapes"))?;
    attributes(&top.join("attributes"))?;
    let tarball = scratch.path("input/tree.tar");
    Step::new("tar")
        .args(["--create", "--sparse", "--format=pax", "--xattrs", "--xattrs-include=user.*", "-f"])
        .arg(&tarball)
        .arg("-C")
        .arg(scratch.path("input"))
        .arg("tree")
        .quiet()?;
    fs::remove_dir_all(&top)?;
    Ok(tarball)
}

/// Bytes that look random, the same for the same seed.
pub(super) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    Random::new(seed).bytes(length)
}

fn sources(repository: &Path, to: &Path) -> Outcome {
    let listing = Step::new("git")
        .args(["ls-files", "-co", "--exclude-standard"])
        .dir(repository)
        .capture()?;
    for name in listing.lines() {
        let from = repository.join(name);
        if fs::symlink_metadata(&from).is_ok_and(|stat| stat.is_file()) {
            let to = to.join(name);
            fs::create_dir_all(to.parent().unwrap_or(&to))?;
            fs::copy(from, to)?;
        }
    }
    Ok(())
}

fn files(dir: &Path) -> Outcome {
    fs::create_dir(dir)?;
    for (at, size) in SIZES.iter().enumerate() {
        fs::write(dir.join(format!("size-{size:07}")), bytes(at as u64 + 1, *size))?;
        fs::write(
            dir.join(format!("text-{size:07}")),
            "All work and no play. ".repeat(size / 22 + 1),
        )?;
    }
    let mut sparse = File::create(dir.join("sparse"))?;
    for offset in [0_u64, 1 << 20, 40 << 20] {
        sparse.seek(SeekFrom::Start(offset))?;
        sparse.write_all(&bytes(offset + 7, 10_000))?;
    }
    sparse.set_len(64 << 20)?;
    let mut small_holes = File::create(dir.join("small-holes"))?;
    small_holes.seek(SeekFrom::Start(40_000))?;
    small_holes.write_all(b"after a hole")?;
    File::create(dir.join("only-a-hole"))?.set_len(60_000)?;
    Ok(())
}

fn names(dir: &Path) -> Outcome {
    fs::create_dir(dir)?;
    let mut odd: Vec<Vec<u8>> = vec![
        vec![b'x'; 255],
        "\u{e4}\u{f6}\u{fc} \u{6c34}\u{1f40b}".into(),
        vec![0xff, 0xfe, b'a', 0x80],
        b" leading and trailing ".to_vec(),
        b"new\nline\ttab".to_vec(),
        b"-rf".to_vec(),
        b"...".to_vec(),
        b"back\\slash'quote\"double*star?".to_vec(),
    ];
    odd.extend((1..=31_u8).filter(|byte| *byte != b'\n').map(|byte| vec![b'c', byte]));
    for (at, name) in odd.into_iter().enumerate() {
        fs::write(dir.join(OsString::from_vec(name)), format!("{at}"))?;
    }
    Ok(())
}

fn links(dir: &Path) -> Outcome {
    fs::create_dir(dir)?;
    fs::write(dir.join("original"), "one file, many names")?;
    for at in 0..40 {
        fs::hard_link(dir.join("original"), dir.join(format!("name-{at}")))?;
    }
    fs::write(dir.join("large"), bytes(3, 300_000))?;
    fs::hard_link(dir.join("large"), dir.join("large-again"))?;
    symlink("original", dir.join("symlink"))?;
    symlink("nowhere/at/all", dir.join("dangling"))?;
    symlink("..", dir.join("up"))?;
    for length in [1_usize, 100, 600, 4000] {
        let target = "a/".repeat(length / 2) + if length % 2 == 1 { "b" } else { "" };
        symlink(target, dir.join(format!("target-{length}")))?;
    }
    Ok(())
}

fn shapes(dir: &Path) -> Outcome {
    let mut deep = dir.join("deep");
    fs::create_dir_all(&deep)?;
    for level in 0..DEPTH {
        fs::write(deep.join("file"), format!("level {level}"))?;
        deep.push(format!("level-{level}"));
        fs::create_dir(&deep)?;
    }
    let wide = dir.join("wide");
    fs::create_dir(&wide)?;
    for at in 0..WIDTH {
        fs::write(wide.join(format!("{at:x}.txt")), format!("{at}\n"))?;
    }
    fs::create_dir_all(dir.join("empty/empty"))?;
    Ok(())
}

fn attributes(dir: &Path) -> Outcome {
    fs::create_dir(dir)?;
    for (at, mode) in
        [0o000, 0o400, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o4755].into_iter().enumerate()
    {
        let path = dir.join(format!("mode-{mode:04o}"));
        fs::write(&path, "x")?;
        let seconds = 86_400 * 365 * at as u64;
        File::options().append(true).open(&path)?.set_modified(
            UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(123_456_789),
        )?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    let tagged = dir.join("tagged");
    fs::write(&tagged, "attributes")?;
    let set =
        |name: &str, value: &[u8]| rustix::fs::setxattr(&tagged, name, value, XattrFlags::empty());
    match set("user.short", b"1") {
        // A scratch directory without extended attributes: the tree goes without them.
        Err(rustix::io::Errno::NOTSUP) => return Ok(()),
        other => other?,
    }
    set("user.empty", b"")?;
    set("user.long", &bytes(9, 2000))?;
    rustix::fs::setxattr(dir, "user.on-a-directory", b"yes", XattrFlags::empty())?;
    Ok(())
}
