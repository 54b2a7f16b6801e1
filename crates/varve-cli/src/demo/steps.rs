//! The work of the demonstration, and the comparison after it.

use std::time::{Duration, Instant};

use super::Plan;
use super::place::Place;
use varve::{Error, Result};
use varve_env::rng::Rng;

/// Every so many files one holds 4 KiB.
const SMALL_EVERY: u32 = 10;

/// Every so many files one is saved durably.
const SAVE_EVERY: u32 = 200;

/// Bytes of a small file.
pub(super) const SMALL_BYTES: usize = 4096;

/// Where the large file lies.
const LARGE: (&str, &str) = ("large", "file");

/// One step.
pub(super) struct Step {
    /// Its name.
    pub(super) name: &'static str,
    /// Whether it looks at what is there, and changes nothing.
    pub(super) looks: bool,
    /// Does it.
    pub(super) run: fn(&Plan, &dyn Place) -> Result<Measured>,
}

/// What a step did.
pub(super) struct Measured {
    /// Operations done.
    pub(super) operations: u64,
    /// Bytes moved.
    pub(super) bytes: u64,
    /// Time taken.
    pub(super) time: Duration,
}

/// All steps, in order.
pub(super) const STEPS: &[Step] = &[
    Step { name: "create empty files", looks: false, run: create },
    Step { name: "stat each", looks: true, run: stat },
    Step { name: "ls -l, per name", looks: true, run: list },
    Step { name: "chmod each", looks: false, run: chmod },
    Step { name: "rename each", looks: false, run: rename },
    Step { name: "write 4 KiB files", looks: false, run: write_small },
    Step { name: "read 4 KiB files", looks: true, run: read_small },
    Step { name: "save 4 KiB files with fsync", looks: false, run: save },
    Step { name: "write a large file", looks: false, run: write_large },
    Step { name: "read a large file", looks: true, run: read_large },
    Step { name: "remove every second file", looks: false, run: unlink },
];

impl Plan {
    fn dir(self, file: u32) -> String {
        format!("dir-{:03}", file % self.dirs)
    }

    fn dirs(self) -> impl Iterator<Item = String> {
        (0..self.dirs).map(move |dir| self.dir(dir))
    }
}

fn old_name(file: u32) -> String {
    format!("file-{file:06}")
}

fn new_name(file: u32) -> String {
    format!("renamed-{file:06}")
}

fn small_name(file: u32) -> String {
    format!("small-{file:06}")
}

fn saved_name(file: u32) -> String {
    format!("saved-{file:06}")
}

/// Bytes that differ from file to file.
pub(super) fn content(file: u32, length: usize) -> Vec<u8> {
    Rng::new(u64::from(file)).bytes(length)
}

fn timed(operations: u64, bytes: u64, body: impl FnOnce() -> Result<()>) -> Result<Measured> {
    let begin = Instant::now();
    body()?;
    Ok(Measured { operations, bytes, time: begin.elapsed() })
}

/// Calls `body` with the directory and number of every file.
fn each(plan: Plan, mut body: impl FnMut(&str, u32) -> Result<()>) -> Result<Measured> {
    timed(u64::from(plan.files), 0, || {
        (0..plan.files).try_for_each(|file| body(&plan.dir(file), file))
    })
}

fn create(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    for dir in plan.dirs() {
        place.make_dir(&dir)?;
    }
    place.make_dir(LARGE.0)?;
    each(*plan, |dir, file| place.create(dir, &old_name(file)))
}

fn stat(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    each(*plan, |dir, file| place.stat(dir, &old_name(file)).map(drop))
}

fn list(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    timed(u64::from(plan.files), 0, || {
        let mut found = 0;
        for dir in plan.dirs() {
            found += place.list(&dir)?.len();
        }
        expect("names", found as u64, u64::from(plan.files))
    })
}

fn chmod(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    each(*plan, |dir, file| place.chmod(dir, &old_name(file), 0o600))
}

fn rename(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    each(*plan, |dir, file| place.rename(dir, &old_name(file), &new_name(file)))
}

fn small_files(plan: &Plan) -> impl Iterator<Item = u32> {
    (0..plan.files).step_by(SMALL_EVERY as usize)
}

fn write_small(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    let count = small_files(plan).count() as u64;
    timed(count, count * SMALL_BYTES as u64, || {
        small_files(plan).try_for_each(|file| {
            place.write(&plan.dir(file), &small_name(file), &content(file, SMALL_BYTES), false)
        })
    })
}

fn read_small(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    let count = small_files(plan).count() as u64;
    timed(count, count * SMALL_BYTES as u64, || {
        small_files(plan).try_for_each(|file| {
            let found = place.read(&plan.dir(file), &small_name(file))?;
            expect_content(&small_name(file), &found, file, SMALL_BYTES)
        })
    })
}

fn save(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    let files = || (0..plan.files).step_by(SAVE_EVERY as usize);
    let count = files().count() as u64;
    timed(count, count * SMALL_BYTES as u64, || {
        files().try_for_each(|file| {
            place.write(&plan.dir(file), &saved_name(file), &content(file, SMALL_BYTES), true)
        })
    })
}

fn write_large(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    let data = content(u32::MAX, plan.large_bytes);
    timed(1, plan.large_bytes as u64, || place.write(LARGE.0, LARGE.1, &data, false))
}

fn read_large(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    let mut found = Vec::new();
    let measured = timed(1, plan.large_bytes as u64, || {
        found = place.read(LARGE.0, LARGE.1)?;
        Ok(())
    })?;
    expect_content(LARGE.1, &found, u32::MAX, plan.large_bytes)?;
    Ok(measured)
}

fn unlink(plan: &Plan, place: &dyn Place) -> Result<Measured> {
    let count = (0..plan.files).step_by(2).count() as u64;
    timed(count, 0, || {
        (0..plan.files)
            .step_by(2)
            .try_for_each(|file| place.unlink(&plan.dir(file), &new_name(file)))
    })
}

/// Compares every directory, and every small file and the large one byte for byte; returns how many files
/// were compared.
pub(super) fn compare(plan: &Plan, reference: &dyn Place, place: &dyn Place) -> Result<u64> {
    let mut compared = 0;
    for dir in plan.dirs() {
        let (expected, found) = (reference.list(&dir)?, place.list(&dir)?);
        if expected != found {
            return Err(wrong(format!("{dir} lists other names or sizes")));
        }
        compared += found.len() as u64;
    }
    read_small(plan, place)?;
    read_large(plan, place)?;
    Ok(compared + 1)
}

pub(super) fn expect(what: &str, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        Ok(())
    } else {
        Err(wrong(format!("{found} {what} instead of {expected}")))
    }
}

pub(super) fn expect_content(name: &str, found: &[u8], file: u32, length: usize) -> Result<()> {
    if found == content(file, length) {
        Ok(())
    } else {
        Err(wrong(format!("{name} holds other bytes")))
    }
}

pub(super) fn wrong(message: String) -> Error {
    Error::failed(message).hint("this must not happen: please report it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::place::Directory;

    #[test]
    fn the_steps_run_and_the_comparison_sees_a_changed_byte() {
        let plan = Plan { files: 40, dirs: 3, large_bytes: 1 << 20 };
        let roots = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let places = roots.each_ref().map(|root| Directory::new(root.path()));
        for place in &places {
            for step in STEPS {
                (step.run)(&plan, place).unwrap();
            }
        }
        compare(&plan, &places[0], &places[1]).unwrap();
        let file = roots[1].path().join(plan.dir(10)).join(small_name(10));
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[100] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        assert!(compare(&plan, &places[0], &places[1]).is_err());
        std::fs::remove_file(&file).unwrap();
        assert!(compare(&plan, &places[0], &places[1]).is_err());
    }
}
