//! Which rows repairs of the engine's files could not save: `STORE/LOST`, one line of JSON and one of its CRC32C; and the same once more in
//! `STORE/LOST.copy`.
//!
//! A chunk of a small file that is absent is a hole, so a lost one would read as zeros. Therefore:
//!
//! 1. The repair notes the ranges of lost keys here, durably.
//! 2. The check that follows names each file that has no chunk in such a range, and the repair puts a row there that stands for a lost
//!    chunk ([`varve_schema::lost_chunk`]): reads of it fail until it is written anew, cut off or zeroed. A hole in such a range
//!    is taken for a lost chunk, as nobody can tell. Then the repair notes that this is done.
//! 3. Snapshots and transactions that began before see no such row. For them the ranges stay here: what is absent in one is
//!    lost ([`Lost::hides`]).
//!
//! Invariant: as long as a range is not marked in the rows, this file is there, whatever is cut short.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use varve_engine::repair::EngineRepair;
use varve_env::{Env, OpenMode};
use varve_schema::{DATA, META};

use crate::epoch::Epoch;

/// The name of the file.
pub(crate) const LOST_NAME: &str = "LOST";
/// The name of its copy.
const COPY_NAME: &str = "LOST.copy";
/// That of the next one, before it has its name.
const BEGUN_NAME: &str = "LOST.new";
/// A longer file is none of ours.
const BYTES_MAX: u64 = 64 << 20;

/// A range of keys, both ends included; `None` is the beginning or the end of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Range {
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
}

impl Range {
    const ALL: Range = Range { from: None, to: None };

    fn meets(&self, from: &[u8], to: &[u8]) -> bool {
        self.from.as_ref().is_none_or(|own| own.as_slice() <= to)
            && self.to.as_ref().is_none_or(|own| own.as_slice() >= from)
    }
}

/// What one repair could not save.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Loss {
    meta: Vec<Range>,
    data: Vec<Range>,
    /// Ids handed out until then are below; none yet, as long as the rows do not say what is lost.
    below: Option<u64>,
}

/// See the module's comment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lost(Vec<Loss>);

fn path(dir: &Path) -> PathBuf {
    dir.join(LOST_NAME)
}

impl Lost {
    /// What is noted in the store `dir`. If it cannot be read, every chunk that is absent may be lost.
    pub(crate) fn read(env: &dyn Env, dir: &Path) -> io::Result<Lost> {
        let mut is_noted = false;
        for name in [LOST_NAME, COPY_NAME] {
            let file = match env.open(&dir.join(name), OpenMode::Read) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            is_noted = true;
            let len = file.stat()?.len.min(BYTES_MAX);
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, 0)?;
            if let Some(lost) = Lost::decode(&bytes) {
                return Ok(lost);
            }
        }
        if !is_noted {
            return Ok(Lost::default());
        }
        let path = path(dir);
        log::error!("{} is damaged: holes of small files count as lost", path.display());
        let all = Loss { meta: Vec::new(), data: vec![Range::ALL], below: Some(u64::MAX) };
        Ok(Lost(vec![all]))
    }

    fn decode(bytes: &[u8]) -> Option<Lost> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let (json, crc) = bytes.split_at(end);
        (crc == format!("\n{:08x}\n", crc32c::crc32c(json)).as_bytes())
            .then(|| serde_json::from_slice(json).ok())?
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.extend_from_slice(format!("\n{:08x}\n", crc32c::crc32c(&bytes)).as_bytes());
        Ok(bytes)
    }

    /// Has the store `dir` say this, durably: before, or after a crash.
    fn write(&self, env: &dyn Env, dir: &Path) -> io::Result<()> {
        let begun = dir.join(BEGUN_NAME);
        for name in [COPY_NAME, LOST_NAME] {
            let path = dir.join(name);
            if self.0.is_empty() {
                match env.remove_file(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    removed => removed?,
                }
            } else {
                let file = env.open(&begun, OpenMode::CreateOrOpen)?;
                file.set_len(0)?;
                file.write_all_at(&self.encode()?, 0)?;
                file.sync_all()?;
                env.rename(&begun, &path)?;
            }
            env.sync_dir(dir)?;
        }
        Ok(())
    }

    /// Notes what a repair could not save, before it is in force.
    pub(crate) fn note(env: &dyn Env, dir: &Path, repaired: &EngineRepair) -> io::Result<()> {
        let of = |keyspace: &str| -> Vec<Range> {
            let lost = repaired.lost.iter().filter(|lost| lost.keyspace == keyspace);
            lost.map(|lost| Range { from: lost.after.clone(), to: lost.before.clone() }).collect()
        };
        let mut loss = Loss { meta: of(META), data: of(DATA), below: None };
        // Those that the damaged bytes of a log name, as far as they can be believed: in doubt at least.
        for lost in repaired.lost_records.iter().flat_map(|lost| &lost.keys) {
            let own = Range { from: Some(lost.key.clone()), to: Some(lost.key.clone()) };
            match lost.keyspace.as_str() {
                META => loss.meta.push(own),
                DATA => loss.data.push(own),
                _ => {}
            }
        }
        if !repaired.lost_records.is_empty() {
            // Nobody knows which rows a part of a log wrote that cannot be read.
            loss.data.push(Range::ALL);
        }
        let mut lost = Lost::read(env, dir)?;
        if loss.meta.is_empty() && loss.data.is_empty() || lost.0.contains(&loss) {
            return Ok(());
        }
        lost.0.push(loss);
        lost.write(env, dir)
    }

    /// Notes that rows stand where chunks are lost, ids below `below` having been handed out. Nothing is kept unless snapshots or transactions
    /// are left that began before.
    pub(crate) fn note_marked(
        env: &dyn Env,
        dir: &Path,
        below: u64,
        epochs: &mut dyn Iterator<Item = Epoch>,
    ) -> io::Result<()> {
        let mut lost = Lost::read(env, dir)?;
        let before = lost.clone();
        lost.0.iter_mut().for_each(|loss| loss.below = loss.below.or(Some(below)));
        let oldest = epochs.min().unwrap_or(Epoch::LAST);
        lost.0.retain(|loss| loss.below.is_some_and(|below| oldest < Epoch::new(below)));
        if lost == before { Ok(()) } else { lost.write(env, dir) }
    }

    /// What the rows do not say yet.
    pub(crate) fn unmarked(mut self) -> Lost {
        self.0.retain(|loss| loss.below.is_none());
        self
    }

    /// What is lost to a snapshot or transaction of this epoch.
    pub(crate) fn seen_at(mut self, epoch: Epoch) -> Lost {
        self.0.retain(|loss| loss.below.is_none_or(|below| epoch < Epoch::new(below)));
        self
    }

    /// Nothing is.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a row of data with this key would be lost.
    pub(crate) fn hides(&self, key: &[u8]) -> bool {
        self.0.iter().flat_map(|loss| &loss.data).any(|range| range.meets(key, key))
    }

    /// Whether rows of data with keys in a range may be lost.
    pub(crate) fn meets_data(&self, from: &[u8], to: &[u8]) -> bool {
        self.0.iter().flat_map(|loss| &loss.data).any(|range| range.meets(from, to))
    }

    /// The same, where it is known which those are.
    pub(crate) fn doubts_data(&self, from: &[u8], to: &[u8]) -> bool {
        let mut ranges = self.0.iter().flat_map(|loss| &loss.data);
        ranges.any(|range| *range != Range::ALL && range.meets(from, to))
    }

    /// Whether rows of names and inodes with keys in a range may be lost.
    pub(crate) fn meets_meta(&self, from: &[u8], to: &[u8]) -> bool {
        self.0.iter().flat_map(|loss| &loss.meta).any(|range| range.meets(from, to))
    }
}

#[cfg(test)]
mod tests {
    use varve_env::sim::SimEnv;

    use super::*;

    const DIR: &str = "/s";

    fn lost(from: &[u8], below: Option<u64>) -> Lost {
        let range = Range { from: Some(from.to_vec()), to: Some(b"m".to_vec()) };
        Lost(vec![Loss { meta: Vec::new(), data: vec![range], below }])
    }

    #[test]
    fn what_is_damaged_hides_all_and_what_is_whole_its_ranges() {
        let (env, dir) = (SimEnv::new(1), Path::new(DIR));
        env.create_dir(dir).unwrap();
        assert!(Lost::read(&*env, dir).unwrap().is_empty());
        let noted = lost(b"c", None);
        noted.write(&*env, dir).unwrap();
        assert_eq!(Lost::read(&*env, dir).unwrap(), noted);
        let hidden = ["b", "c", "e", "m", "n"].map(|key| noted.hides(key.as_bytes()));
        assert_eq!(hidden, [false, true, true, true, false]);
        let bytes = noted.encode().unwrap();
        let both = [LOST_NAME, COPY_NAME].map(|name| dir.join(name));
        for at in 0..bytes.len() as u64 {
            env.damage(&both[0], at, 1).unwrap();
            assert_eq!(Lost::read(&*env, dir).unwrap(), noted, "byte {at}");
            env.damage(&both[1], at, 1).unwrap();
            assert!(Lost::read(&*env, dir).unwrap().hides(b"z"), "byte {at}");
            env.damage(&both[0], at, 1).unwrap();
            assert_eq!(Lost::read(&*env, dir).unwrap(), noted, "byte {at}");
            env.damage(&both[1], at, 1).unwrap();
        }
        // Chunks that are lost would read as zeros.
        env.remove_raw(&both[0]).unwrap();
        assert_eq!(Lost::read(&*env, dir).unwrap(), noted);
    }

    #[test]
    fn it_is_written_as_version_1_wrote_it() {
        let range = |from: &[u8], to: Option<&[u8]>| Range {
            from: Some(from.to_vec()),
            to: to.map(<[u8]>::to_vec),
        };
        let first = Loss {
            meta: vec![range(b"a", Some(b"b\xff"))],
            data: Vec::new(),
            below: Some(u64::MAX),
        };
        let second =
            Loss { meta: Vec::new(), data: vec![range(b"", None), Range::ALL], below: None };
        let written = Lost(vec![first, second]);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/LOST");
        varve_testkit::golden(path, &written.encode().unwrap());
        assert_eq!(Lost::decode(&written.encode().unwrap()), Some(written));
    }

    #[test]
    fn ranges_stay_as_long_as_something_began_before() {
        let (env, dir) = (SimEnv::new(1), Path::new(DIR));
        env.create_dir(dir).unwrap();
        lost(b"c", None).write(&*env, dir).unwrap();
        let mark = |epochs: &[u64]| {
            let mut epochs = epochs.iter().map(|epoch| Epoch::new(*epoch));
            Lost::note_marked(&*env, dir, 50, &mut epochs).unwrap();
            Lost::read(&*env, dir).unwrap()
        };
        assert_eq!(mark(&[30, 60]), lost(b"c", Some(50)));
        let read = || Lost::read(&*env, dir).unwrap();
        assert!(read().unmarked().is_empty() && read().seen_at(Epoch::new(60)).is_empty());
        assert!(read().seen_at(Epoch::new(30)).hides(b"d"));
        assert!(mark(&[60]).is_empty());
        assert!([LOST_NAME, COPY_NAME].iter().all(|name| env.stat(&dir.join(name)).is_err()));
    }
}
