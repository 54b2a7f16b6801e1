//! Writes files until there is no room, and removes them again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use crate::random::Random;

/// What files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Of up to 20 KB.
    Small,
    /// Of up to 4 MB.
    Large,
    /// Of both kinds.
    Mixed,
    /// Small ones and then one that is as large as it can be.
    SmallThenLarge,
    /// Large ones with holes.
    Sparse,
}

impl Fill {
    pub(super) const ALL: [Fill; 5] =
        [Fill::Small, Fill::Large, Fill::Mixed, Fill::SmallThenLarge, Fill::Sparse];

    pub(super) fn name(self) -> &'static str {
        match self {
            Fill::Small => "small",
            Fill::Large => "large",
            Fill::Mixed => "mixed",
            Fill::SmallThenLarge => "small, large",
            Fill::Sparse => "sparse",
        }
    }
}

/// How often a fill goes on after it was refused: the store gets room back meanwhile.
const REFUSALS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(700);
const PIECE_BYTES: usize = 64 << 10;
/// Bytes that others write between two syncs.
const UNSYNCED_BYTES_MAX: u64 = 64 << 20;
/// Files of one directory.
const FILES_PER_DIR: u64 = 500;

/// Whether an error says that there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::NOSPC | Errno::DQUOT))
}

/// A fill that goes on in another thread.
#[derive(Default)]
pub(super) struct Progress {
    /// Files written whole.
    pub(super) files: AtomicU64,
    /// It is to end.
    pub(super) stop: AtomicBool,
}

/// Writes files below `dir` until there is no room, or `most` bytes were written. Errors besides want of room end it.
pub(super) fn fill(
    dir: &Path,
    how: Fill,
    random: &mut Random,
    most: u64,
    progress: &Progress,
) -> io::Result<()> {
    let bytes: Vec<u8> = (0..PIECE_BYTES).map(|_| random.below(256) as u8).collect();
    let (mut refusals, mut written) = (0, 0);
    for number in 0.. {
        if progress.stop.load(Ordering::Relaxed) || written >= most {
            return Ok(());
        }
        let len = match how {
            Fill::Small | Fill::SmallThenLarge => random.below(20_000),
            Fill::Large | Fill::Sparse => 70_000 + random.below(4_000_000),
            Fill::Mixed if random.below(10) == 0 => 70_000 + random.below(2_000_000),
            Fill::Mixed => random.below(20_000),
        };
        let below = dir.join(format!("{}", number / FILES_PER_DIR));
        let path = below.join(format!("{number}"));
        let made = make_dir(&below).and_then(|()| write(&path, len, how, &bytes));
        match made {
            Ok(()) => {
                progress.files.fetch_add(1, Ordering::Relaxed);
                written += len;
            }
            Err(error) if is_full(&error) => {
                refusals += 1;
                if refusals == REFUSALS {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
    if how == Fill::SmallThenLarge {
        let large = write(&dir.join("large"), u64::MAX, Fill::Large, &bytes);
        large.or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) })?;
    }
    Ok(())
}

fn make_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn write(path: &Path, len: u64, how: Fill, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut at = 0;
    while at < len {
        let piece = bytes.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
        match how {
            // Every third piece.
            Fill::Sparse => file.write_all_at(&bytes[..piece], 3 * at)?,
            _ => file.write_all(&bytes[..piece])?,
        }
        at += piece as u64;
    }
    Ok(())
}

/// Fills `path`, a file of others, until `left` bytes are left by `available`.
pub(super) fn fill_beside(
    path: &Path,
    left: u64,
    available: impl Fn() -> io::Result<u64>,
) -> io::Result<()> {
    let mut file = File::create(path)?;
    let piece = vec![0x5a; 1 << 20];
    loop {
        // Btrfs counts what was written once it commits.
        if available()? < left + UNSYNCED_BYTES_MAX {
            rustix::fs::syncfs(&file)?;
        }
        if available()? <= left + piece.len() as u64 {
            break;
        }
        match file.write_all(&piece) {
            Err(error) if is_full(&error) => break,
            written => written?,
        }
    }
    file.sync_all()
}

/// Makes empty files in `dir` until there can be no more.
pub(super) fn use_inodes_up(dir: &Path) -> io::Result<()> {
    fs::create_dir(dir)?;
    for number in 0.. {
        match File::create(dir.join(format!("{number}"))) {
            Err(error) if is_full(&error) => break,
            made => made.map(drop)?,
        }
    }
    Ok(())
}

/// Removes all that is in `dir`; says how many names went, and what was refused first.
pub(super) fn empty(dir: &Path) -> io::Result<u64> {
    let mut removed = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot remove {}: {error}", path.display()))
        };
        if entry.file_type()?.is_dir() {
            removed += empty(&path)?;
            fs::remove_dir(&path).map_err(named)?;
        } else {
            fs::remove_file(&path).map_err(named)?;
        }
        removed += 1;
    }
    Ok(removed)
}
