//! Whether a place is as a workload must have left it.

use super::{Opening, Place};
use crate::Failure;
use crate::noise::{CALL_BYTES_MAX, differs_at};
use crate::op::{Expect, Is};
use crate::run::Step;

/// An error that says what is not as expected.
pub(crate) fn check(place: &dyn Place, expect: &Expect) -> Result<(), Failure> {
    match expect {
        Expect::Names(dir, names) => {
            let mut found = 0;
            place.list(dir, false, &mut |_, _| found += 1)?;
            equal(dir, "names", &found, names)
        }
        Expect::File { path, bytes, key } => {
            equal(path, "size", &stat(place, path)?.bytes, bytes)?;
            same_bytes(place, path, 0, *bytes, *key)
        }
        Expect::Part { path, offset, bytes, key } => same_bytes(place, path, *offset, *bytes, *key),
        Expect::Succeeds(script) => run_in(place, script),
        Expect::Mode(path, mode) => equal(path, "mode", &stat(place, path)?.mode, mode),
        Expect::Changed(path, seconds) => {
            equal(path, "time of last change", &stat(place, path)?.changed, seconds)
        }
        Expect::Present(path) => stat(place, path).map(drop),
        Expect::Absent(path) => match place.stat(path)? {
            None => Ok(()),
            Some(_) => Err(format!("check failed: {path} exists").into()),
        },
    }
}

fn stat(place: &dyn Place, path: &str) -> Result<super::Stat, Failure> {
    Ok(place.stat(path)?.ok_or_else(|| format!("check failed: {path} does not exist"))?)
}

/// Asks for the attributes of `path`, which must be those of `is`.
pub(super) fn look(place: &dyn Place, path: &str, is: Is) -> Result<(), Failure> {
    let found = stat(place, path)?;
    match is {
        Is::Dir if found.is_dir => Ok(()),
        Is::File { bytes } if !found.is_dir => equal(path, "size", &found.bytes, &bytes),
        Is::Dir => Err(format!("check failed: {path} is no directory").into()),
        Is::File { .. } => Err(format!("check failed: {path} is a directory").into()),
    }
}

pub(super) fn equal<T: PartialEq + std::fmt::Display>(
    path: &str,
    what: &str,
    found: &T,
    expected: &T,
) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    Err(format!("check failed: {path} has {what} {found} instead of {expected}").into())
}

/// Runs a shell script in the root of the place.
pub(super) fn run_in(place: &dyn Place, script: &str) -> Result<(), Failure> {
    let root = place.root().ok_or("programs run on a mount, not in the library")?;
    Step::new("sh").args(["-c", script]).dir(root).bound().quiet()
}

fn same_bytes(
    place: &dyn Place,
    path: &str,
    from: u64,
    bytes: u64,
    key: u64,
) -> Result<(), Failure> {
    if bytes == 0 {
        return Ok(());
    }
    let file = place.open(path, Opening::Read)?;
    let mut buffer = vec![0; CALL_BYTES_MAX.min(bytes as usize)];
    let mut offset = from;
    while offset < from + bytes {
        let length = buffer.len().min((from + bytes - offset) as usize);
        match file.read_at(&mut buffer[..length], offset)? {
            0 => return Err(format!("check failed: {path} ends at {offset}").into()),
            read => {
                require_noise(path, &buffer[..read], key, offset)?;
                offset += read as u64;
            }
        }
    }
    file.close()
}

/// An error unless `data` is what the file `path` of `key` has from `offset` on.
pub(super) fn require_noise(path: &str, data: &[u8], key: u64, offset: u64) -> Result<(), Failure> {
    match differs_at(data, key, offset) {
        None => Ok(()),
        Some(at) => Err(format!("check failed: {path} has other bytes from {at} on").into()),
    }
}
