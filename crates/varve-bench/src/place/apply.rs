//! Operations on a place.

use super::check::run_in;
use super::{OpenFile, Opening, Place};
use crate::Failure;
use crate::noise::{CALL_BYTES_MAX, bytes_at};
use crate::op::{Detail, Op};

/// What one worker holds between operations: a buffer, and the file it used last, open.
pub(crate) struct Hands {
    buffer: Vec<u8>,
    open: Option<(String, Opening, Box<dyn OpenFile>)>,
}

impl Hands {
    /// Empty hands.
    pub(crate) fn new() -> Hands {
        Hands { buffer: vec![0; CALL_BYTES_MAX], open: None }
    }

    /// Does one operation; returns how many names it met, 1 unless it lists.
    pub(crate) fn apply(&mut self, place: &dyn Place, op: &Op) -> Result<u64, Failure> {
        match op {
            Op::MakeDir(path) => place.make_dir(path)?,
            Op::RemoveDir(path) => place.remove_dir(path)?,
            Op::Create { path, bytes: 0, .. } => place.create(path)?,
            Op::Create { path, bytes, key } => {
                write(&*place.open(path, Opening::Create)?, 0, *bytes, *key)?;
            }
            Op::Deliver { path, bytes, key } => {
                let file = place.open(path, Opening::Create)?;
                write(&*file, 0, *bytes, *key)?;
                file.sync()?;
            }
            Op::Append { path, at, bytes, key, durable } => {
                let file = place.open(path, Opening::Write)?;
                write(&*file, *at, *bytes, *key)?;
                if *durable {
                    file.sync()?;
                }
            }
            Op::Read { path, bytes } => {
                let read = self.read_whole(place, path)?;
                if read != *bytes {
                    return Err(format!("{path} has {read} bytes instead of {bytes}").into());
                }
            }
            Op::Stat(path) => {
                place.stat(path)?.ok_or_else(|| format!("{path} does not exist"))?;
            }
            Op::Chmod(path, mode) => place.chmod(path, *mode)?,
            Op::Utime(path, seconds) => place.utime(path, *seconds)?,
            Op::Rename(from, to) => place.rename(from, to)?,
            Op::Unlink(path) => place.unlink(path)?,
            Op::List(path, detail) => return self.list(place, path, *detail),
            Op::ReadAt { path, offset, bytes } => {
                let length = (*bytes).min(CALL_BYTES_MAX as u64) as usize;
                let (buffer, file) = self.opened(place, path, Opening::Read)?;
                let read = file.read_at(&mut buffer[..length], *offset)?;
                if read != length {
                    return Err(format!("{path} ends at {}", offset + read as u64).into());
                }
            }
            Op::WriteAt { path, offset, bytes, key } => {
                let (_, file) = self.opened(place, path, Opening::Write)?;
                write(file, *offset, *bytes, *key)?;
            }
            Op::Sync(path) => self.opened(place, path, Opening::Write)?.1.sync()?,
            Op::Run(script) => run_in(place, script)?,
        }
        Ok(1)
    }

    /// The buffer, and the file `path`, which stays open until another is asked for.
    fn opened(
        &mut self,
        place: &dyn Place,
        path: &str,
        how: Opening,
    ) -> Result<(&mut Vec<u8>, &dyn OpenFile), Failure> {
        let is_open = self.open.as_ref().is_some_and(|(at, with, _)| at == path && *with == how);
        if !is_open {
            self.open = None;
            self.open = Some((path.to_owned(), how, place.open(path, how)?));
        }
        match &self.open {
            Some((_, _, file)) => Ok((&mut self.buffer, &**file)),
            None => Err("no file is open".into()),
        }
    }

    fn read_whole(&mut self, place: &dyn Place, path: &str) -> Result<u64, Failure> {
        let file = place.open(path, Opening::Read)?;
        let mut offset = 0;
        loop {
            match file.read_at(&mut self.buffer, offset)? {
                0 => return Ok(offset),
                read => offset += read as u64,
            }
        }
    }

    fn list(&mut self, place: &dyn Place, dir: &str, detail: Detail) -> Result<u64, Failure> {
        let mut names = 0;
        let mut files = Vec::new();
        place.list(dir, detail == Detail::Attributes, &mut |name, is_dir| {
            names += 1;
            if detail == Detail::Contents && !is_dir {
                files.push(format!("{dir}/{name}"));
            }
        })?;
        for file in &files {
            self.read_whole(place, file)?;
        }
        Ok(names)
    }
}

/// Writes the bytes of `key` from `at` on.
fn write(file: &dyn OpenFile, at: u64, bytes: u64, key: u64) -> Result<(), Failure> {
    let mut offset = at;
    while offset < at + bytes {
        let data = bytes_at(key, offset, at + bytes - offset);
        file.write_at(data, offset)?;
        offset += data.len() as u64;
    }
    Ok(())
}
