//! Operations on a place.

use std::time::Duration;

use super::check::{equal, look, require_noise, run_in};
use super::{OpenFile, Opening, Place};
use crate::Failure;
use crate::meter::cpu_of_this_thread;
use crate::noise::{CALL_BYTES_MAX, bytes_at};
use crate::op::{Detail, Listing, Op};

/// Of so many reads the bytes of one are compared.
const READS_PER_CHECK: u64 = 64;

/// What one worker holds between operations: a buffer, and the file it used last, open.
pub(crate) struct Hands {
    buffer: Vec<u8>,
    open: Option<(String, Opening, Box<dyn OpenFile>)>,
    /// The file that a listing read last.
    listed: String,
    /// How many files or parts of them may be read before one is compared.
    unchecked: u64,
    /// Where in its file what is in the buffer was read last, and how much of it.
    read: (u64, usize),
}

impl Hands {
    /// Empty hands.
    pub(crate) fn new() -> Hands {
        let (buffer, listed) = (vec![0; CALL_BYTES_MAX], String::new());
        Hands { buffer, open: None, listed, unchecked: 0, read: (0, 0) }
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
            Op::List(listing) => return self.list(place, listing),
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
    /// part, of a listing the last file. Gives the CPU time of that if it was. Done apart from the operation, as it is not
    /// the file system's.
    pub(crate) fn check_read(&mut self, op: &Op) -> Result<Option<Duration>, Failure> {
        let (path, key, reads) = match op {
            Op::Read { path, key, .. } | Op::ReadAt { path, key, .. } => (path, *key, 1),
            Op::List(Listing { detail: Detail::Contents, names, .. })
                if !self.listed.is_empty() =>
            {
                (&self.listed, number_of(&self.listed)?, *names)
            }
            _ => return Ok(None),
        };
        if self.unchecked >= reads {
            self.unchecked -= reads;
            return Ok(None);
        }
        self.unchecked = READS_PER_CHECK - 1;
        let begin = cpu_of_this_thread();
        let (offset, length) = self.read;
        require_noise(path, &self.buffer[..length], key, offset)?;
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

    /// Lists a directory; what it meets must be what was made there.
    fn list(&mut self, place: &dyn Place, listing: &Listing) -> Result<u64, Failure> {
        let Listing { dir, detail, .. } = listing;
        let (mut names, mut bytes) = (0, 0);
        let mut files = Vec::new();
        place.list(dir, *detail == Detail::Attributes, &mut |name, listed| {
            names += 1;
            if !listed.is_dir {
                bytes += listed.bytes;
                if *detail == Detail::Contents {
                    files.push(format!("{dir}/{name}"));
                }
            }
        })?;
        if *detail == Detail::Contents {
            bytes = 0;
            for file in &files {
                bytes += self.read_whole(place, file)?;
            }
            self.listed = files.pop().unwrap_or_default();
        }
        equal(dir, "names", &names, &listing.names)?;
        if *detail != Detail::Names {
            equal(dir, "files of bytes", &bytes, &listing.bytes)?;
        }
        Ok(names)
    }
}

/// The number at the end of a name.
fn number_of(name: &str) -> Result<u64, Failure> {
    let number = name.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    Ok(number.parse().map_err(|_| format!("{name} has no number at its end"))?)
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

    /// Listings counted their names in all, and dropped what they saw and read of each.
    #[test]
    fn what_a_listing_meets_must_be_right() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let place = Kernel::new(dir.path()).expect("directory opens");
        let mut hands = Hands::new();
        hands.apply(&place, &Op::MakeDir("d".to_owned())).expect("a directory");
        hands.apply(&place, &Op::MakeDir("d/d1".to_owned())).expect("a directory");
        for key in [7, 8] {
            let path = format!("d/f{key}");
            hands.apply(&place, &Op::Create { path, bytes: 10 * key, key }).expect("a file");
        }
        let list =
            |detail, names, bytes| Op::List(Listing { dir: "d".to_owned(), detail, names, bytes });
        use Detail::{Attributes, Contents, Names};
        for (op, is_right) in [
            (list(Names, 3, 0), true),
            (list(Names, 2, 0), false),
            (list(Attributes, 3, 150), true),
            (list(Attributes, 3, 149), false),
            (list(Contents, 3, 150), true),
            (list(Contents, 3, 151), false),
        ] {
            assert_eq!(hands.apply(&place, &op).is_ok(), is_right, "{op:?}");
        }
        let whole = list(Contents, 3, 150);
        let mut hands = Hands::new();
        hands.apply(&place, &whole).expect("it is read");
        assert!(hands.check_read(&whole).expect("the bytes are right").is_some());
        for file in ["d/f7", "d/f8"] {
            let bytes = std::fs::read(dir.path().join(file)).expect("bytes");
            std::fs::write(dir.path().join(file), vec![0; bytes.len()]).expect("others");
        }
        let mut hands = Hands::new();
        hands.apply(&place, &whole).expect("it is read");
        assert!(hands.check_read(&whole).is_err(), "other bytes");
    }
}
