//! Crash points, and the states that may be found after them.
//!
//! For a file system as a whole, [`explore()`] enumerates: it runs a [`Script`] once, and at every operation
//! that changes what a disk may hold it copies the machine, makes from the copy several images of what the
//! next boot or the next process may find, opens each, and compares it with the script's [`History`].
//!
//! For anything smaller there are [`points`] and [`aftermaths`]:
//!
//! ```
//! use std::path::Path;
//! use varve_env::{Env, OpenMode, sim::SimEnv};
//! use varve_testkit::crash::{aftermaths, points};
//!
//! let work = |env: &SimEnv| -> std::io::Result<()> {
//!     let file = env.open(Path::new("/f"), OpenMode::CreateNew)?;
//!     file.write_all_at(b"x", 0)?;
//!     file.sync_data()?;
//!     env.sync_dir(Path::new("/"))
//! };
//! let whole = SimEnv::new(1);
//! work(&whole).unwrap();
//! for point in points(whole.sync_count(), 100, 1) {
//!     let env = SimEnv::new(1);
//!     env.crash_at_sync(point);
//!     assert!(work(&env).is_err());
//!     for (aftermath, next) in aftermaths(&env, 0..4) {
//!         let bytes = next.read_raw(Path::new("/f")).unwrap_or_default();
//!         assert!(bytes.is_empty() || bytes.len() == 1, "{aftermath:?} after sync {point}");
//!     }
//! }
//! ```

mod clock;
mod explore;
mod history;
mod image;
mod script;

pub use clock::Clock;
pub use explore::{Exploration, Point, Subject, Tally, Violation, explore};
pub use history::{Found, History, Reached};
pub use image::Image;
pub use script::{Fits, Gate, NewLarge, Script, ScriptOptions, Step};

use std::ops::Range;
use std::sync::Arc;

use varve_env::sim::SimEnv;

use crate::kvops::Survived;
use crate::rng::Rng;

/// How a machine or process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aftermath {
    /// The power went and nothing survived but what was synced.
    KeptNothing,
    /// The power went and everything survived.
    KeptAll,
    /// The power went and the choices of this seed survived.
    PowerCut(u64),
    /// The process went and the machine stayed.
    ProcessKill,
}

impl Aftermath {
    /// Returns what a store must still hold.
    pub fn survived(self) -> Survived {
        match self {
            Aftermath::ProcessKill => Survived::Acknowledged,
            Aftermath::KeptNothing | Aftermath::KeptAll | Aftermath::PowerCut(_) => {
                Survived::Synced
            }
        }
    }
}

/// Returns the machines that may be found after `env` stopped: the extremes, one power cut per seed, and at last the
/// death of the process alone.
pub fn aftermaths(
    env: &SimEnv,
    seeds: Range<u64>,
) -> impl Iterator<Item = (Aftermath, Arc<SimEnv>)> + '_ {
    [Aftermath::KeptNothing, Aftermath::KeptAll]
        .into_iter()
        .chain(seeds.map(Aftermath::PowerCut))
        .chain([Aftermath::ProcessKill])
        .map(|aftermath| {
            let next = match aftermath {
                Aftermath::KeptNothing => env.power_cut_keep_nothing(),
                Aftermath::KeptAll => env.power_cut_keep_all(),
                Aftermath::PowerCut(seed) => env.power_cut(seed),
                Aftermath::ProcessKill => env.process_kill(),
            };
            (aftermath, next)
        })
}

/// Points 1 to `total` of a run at which to crash it: all of them if they are at most `most`, else the
/// first and last and a random choice of `most` in all, in order.
pub fn points(total: u64, most: usize, seed: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (1..=total).collect();
    if all.len() <= most {
        return all;
    }
    let mut rng = Rng::new(seed);
    for at in 1..all.len() - 1 {
        let other = rng.between(at as u64, total - 1) as usize;
        all.swap(at, other);
    }
    let mut chosen: Vec<u64> = all[..most.saturating_sub(1)].to_vec();
    chosen.push(total);
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_cover_or_sample() {
        assert_eq!(points(4, 4, 1), [1, 2, 3, 4]);
        assert_eq!(points(0, 4, 1), []);
        let sample = points(1000, 50, 1);
        assert_eq!((sample.len(), sample[0], sample[49]), (50, 1, 1000));
        assert!(sample.windows(2).all(|pair| pair[0] < pair[1]));
        assert_ne!(sample, points(1000, 50, 2));
    }

    #[test]
    fn each_aftermath_is_another_machine() {
        let env = SimEnv::new(1);
        let found: Vec<_> = aftermaths(&env, 0..3).collect();
        assert_eq!(found.len(), 6);
        for (aftermath, next) in found {
            let same_boot = varve_env::Env::boot_id(&*next) == varve_env::Env::boot_id(&*env);
            assert_eq!(same_boot, aftermath.survived() == Survived::Acknowledged);
        }
    }
}
