//! Operations on a place.

use std::time::Duration;

use super::check::{look, require_noise, run_in};
use super::{OpenFile, Opening, Place};
use crate::Failure;
use crate::meter::cpu_of_this_thread;
use crate::noise::{CALL_BYTES_MAX, bytes_at};
use crate::op::{Detail, Op};

/// Of so many reads the bytes of one are compared.
const READS_PER_CHECK: u64 = 64;

/// What one worker holds between operations: a buffer, and the file it used last, open.
pub(crate) struct Hands {
    buffer: Vec<u8>,
    open: Option<(String, Opening, Box<dyn OpenFile>)>,
    /// Reads so far.
    reads: u64,
    /// Where in its file what is in the buffer was read last, and how much of it.
    read: (u64, usize),
}

impl Hands {
    /// Empty hands.
    pub(crate) fn new() -> Hands {
        Hands { buffer: vec![0; CALL_BYTES_MAX], open: None, reads: 0, read: (0, 0) }
    }

    /// Does one operation; returns how many names it met, 1 unless it lists.
    pub(crate) fn apply(&mut self, place: &dyn Place, op: &Op) -> Result<u64, Failure> {
        match op {
            Op::MakeDir(path) => place.make_dir(path)?,
            Op::RemoveDir(path) => place.remove_dir(path)?,
            Op::Create { path, bytes: 0, .. } => place.create(path)?,
            Op::Create { path, bytes, key } => {
                let file = place.open(path, Opening::Create)?;
                write(&*file, 0, *bytes, *key)?;
                file.close()?;
            }
            Op::Deliver { path, bytes, key } => {
                let file = place.open(path, Opening::Create)?;
                write(&*file, 0, *bytes, *key)?;
                file.sync()?;
                file.close()?;
            }
            Op::Append { path, at, bytes, key, durable } => {
                let file = place.open(path, Opening::Write)?;
                write(&*file, *at, *bytes, *key)?;
                if *durable {
                    file.sync()?;
                }
                file.close()?;
            }
            Op::Read { path, bytes, .. } => {
                let read = self.read_whole(place, path)?;
                if read != *bytes {
                    return Err(format!("{path} has {read} bytes instead of {bytes}").into());
                }
            }
            Op::Stat(path, is) => look(place, path, *is)?,
            Op::Chmod(path, mode) => place.chmod(path, *mode)?,
            Op::Utime(path, seconds) => place.utime(path, *seconds)?,
            Op::Rename(from, to) => place.rename(from, to)?,
            Op::Unlink(path) => place.unlink(path)?,
            Op::List(path, detail) => return self.list(place, path, *detail),
            Op::ReadAt { path, offset, bytes, .. } => {
                let length = (*bytes).min(CALL_BYTES_MAX as u64) as usize;
                let (buffer, file) = self.opened(place, path, Opening::Read)?;
                let read = file.read_at(&mut buffer[..length], *offset)?;
                if read != length {
                    return Err(format!("{path} ends at {}", offset + read as u64).into());
                }
                self.read = (*offset, length);
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

    /// Compares what `op`, the last operation, has read, if it is one that reads and is its turn; of a large file the last
    /// part. Gives the CPU time of that if it was. Done apart from the operation, as it is not the file system's.
    pub(crate) fn check_read(&mut self, op: &Op) -> Result<Option<Duration>, Failure> {
        let (Op::Read { path, key, .. } | Op::ReadAt { path, key, .. }) = op else {
            return Ok(None);
        };
        self.reads += 1;
        if self.reads % READS_PER_CHECK != 1 {
            return Ok(None);
        }
        let begin = cpu_of_this_thread();
        let (offset, length) = self.read;
        require_noise(path, &self.buffer[..length], *key, offset)?;
        Ok(Some(cpu_of_this_thread() - begin))
    }

    /// Closes the file that is still open.
    pub(crate) fn close(&mut self) -> Result<(), Failure> {
        self.open.take().map_or(Ok(()), |(_, _, file)| file.close())
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
            self.close()?;
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
        self.read = (0, 0);
        loop {
            match file.read_at(&mut self.buffer, offset)? {
                0 => break,
                read => {
                    self.read = (offset, read);
                    offset += read as u64;
                }
            }
        }
        file.close()?;
        Ok(offset)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Is;
    use crate::place::Kernel;

    /// Reads were checked for their length only, looks not at all.
    #[test]
    fn what_is_read_and_seen_must_be_right() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let place = Kernel::new(dir.path()).expect("directory opens");
        let mut hands = Hands::new();
        let path = || "f".to_owned();
        hands.apply(&place, &Op::Create { path: path(), bytes: 100, key: 1 }).expect("a file");
        let part = |key| Op::ReadAt { path: path(), offset: 10, bytes: 50, key };
        for (op, is_right) in [
            (Op::Read { path: path(), bytes: 100, key: 1 }, true),
            (Op::Read { path: path(), bytes: 100, key: 2 }, false),
            (part(1), true),
            (part(2), false),
        ] {
            let mut hands = Hands::new();
            hands.apply(&place, &op).expect("it is read");
            assert_eq!(hands.check_read(&op).is_ok(), is_right, "{op:?}");
            let again = hands.check_read(&op).expect("not its turn");
            assert!(again.is_none(), "one of many is compared");
        }
        for (is, is_right) in
            [(Is::File { bytes: 100 }, true), (Is::File { bytes: 99 }, false), (Is::Dir, false)]
        {
            assert_eq!(hands.apply(&place, &Op::Stat(path(), is)).is_ok(), is_right, "{is:?}");
        }
        assert!(hands.apply(&place, &Op::Stat(".".to_owned(), Is::Dir)).is_ok());
        assert!(hands.apply(&place, &Op::Stat("none".to_owned(), Is::Dir)).is_err());
    }
}
