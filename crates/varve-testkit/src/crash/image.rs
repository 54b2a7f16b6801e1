//! One of the states that may be found after a crash, with a name that reproduces it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use varve_env::sim::SimEnv;

/// How a machine or process ended, and what was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// The power went, and nothing survived but what was synced.
    Nothing,
    /// The power went, and everything survived.
    All,
    /// The power went, and what this seed chooses survived.
    Cut(u64),
    /// The same, with old bytes in sectors that were never written.
    Stale(u64),
    /// The disk alone lost its power, and what this seed chooses survived; to the machine it is the same disk.
    Storage(u64),
    /// The process went, and the machine stayed.
    Kill,
    /// The same within a write, of which there is what this seed chooses.
    KillWithin(u64),
}

impl Image {
    /// Returns the machine as it is found. `env` must be a copy that nobody works on.
    pub fn of(self, env: &SimEnv) -> Arc<SimEnv> {
        match self {
            Image::Nothing => env.power_cut_keep_nothing(),
            Image::All => env.power_cut_keep_all(),
            Image::Cut(seed) => env.power_cut(seed),
            Image::Stale(seed) => env.power_cut_stale(seed),
            Image::Storage(seed) => env.storage_cut(seed),
            Image::Kill => env.process_kill(),
            Image::KillWithin(seed) => env.process_kill_within(seed),
        }
    }

    /// Returns whether only the process went.
    pub fn is_kill(self) -> bool {
        matches!(self, Image::Kill | Image::KillWithin(_))
    }

    /// Returns whether nothing but gaps tells that something was lost.
    pub fn is_of_storage(self) -> bool {
        matches!(self, Image::Storage(_))
    }

    /// Returns whether old bytes may stand where nothing was written.
    pub fn is_stale(self) -> bool {
        matches!(self, Image::Stale(_))
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Image::Nothing => f.write_str("nothing"),
            Image::All => f.write_str("all"),
            Image::Cut(seed) => write!(f, "cut{seed}"),
            Image::Stale(seed) => write!(f, "stale{seed}"),
            Image::Storage(seed) => write!(f, "storage{seed}"),
            Image::Kill => f.write_str("kill"),
            Image::KillWithin(seed) => write!(f, "within{seed}"),
        }
    }
}

impl FromStr for Image {
    type Err = String;

    fn from_str(text: &str) -> Result<Image, String> {
        let seed = |digits: &str| digits.parse().map_err(|_| format!("no image is called {text}"));
        match text {
            "nothing" => Ok(Image::Nothing),
            "all" => Ok(Image::All),
            "kill" => Ok(Image::Kill),
            _ => {
                let number = |name| text.strip_prefix(name).map(seed);
                let (cut, stale) = (number("cut"), number("stale"));
                let (storage, within) = (number("storage"), number("within"));
                let image = cut.map(|seed| seed.map(Image::Cut));
                image
                    .or_else(|| stale.map(|seed| seed.map(Image::Stale)))
                    .or_else(|| storage.map(|seed| seed.map(Image::Storage)))
                    .or_else(|| within.map(|seed| seed.map(Image::KillWithin)))
                    .unwrap_or_else(|| Err(format!("no image is called {text}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let seeded = [Image::Cut(7), Image::Stale(0), Image::Storage(9), Image::KillWithin(70)];
        for image in [Image::Nothing, Image::All, Image::Kill].into_iter().chain(seeded) {
            assert_eq!(image.to_string().parse(), Ok(image));
        }
        assert!("cut".parse::<Image>().is_err() && "x1".parse::<Image>().is_err());
    }
}
