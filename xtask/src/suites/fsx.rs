//! The crate `fsx`: random reads, writes, maps, truncations, holes and copies on one file, each read
//! compared with what was written.
//!
//! The sizes of the files lie on all sides of the two borders inside Varve: 512 bytes (one row) and 64 KiB
//! (a file of its own below).

use std::fs;
use std::path::Path;

use super::{Effort, Ground, Tally, tools};
use crate::run::{Failure, Outcome, Step};

const VERSION: &str = "0.3.2";

/// Seeds of each profile in one round, beside each other.
const SEEDS: u64 = 2;

/// How much longer a run of `soak` works on one file.
const LONG_FACTOR: u32 = 20;

/// One kind of file.
struct Profile {
    name: &'static str,
    file_bytes_max: u32,
    step_bytes_max: u32,
    align: u32,
    steps: u32,
    /// Leave mapped pages to the kernel's own writing back.
    is_msync_left_out: bool,
    /// Write with everything the suite has, or only what keeps to `align`.
    is_everything: bool,
}

const PROFILES: &[Profile] = &[
    Profile { name: "tiny", file_bytes_max: 900, step_bytes_max: 300, ..WHOLE },
    Profile { name: "small", file_bytes_max: 60_000, step_bytes_max: 20_000, ..WHOLE },
    Profile { name: "crossing", file_bytes_max: 140_000, step_bytes_max: 40_000, ..WHOLE },
    Profile { name: "unsynced", file_bytes_max: 140_000, is_msync_left_out: true, ..WHOLE },
    Profile {
        name: "large",
        file_bytes_max: 4 << 20,
        step_bytes_max: 256 << 10,
        steps: 2000,
        ..WHOLE
    },
    Profile {
        name: "aligned",
        file_bytes_max: 1 << 20,
        step_bytes_max: 128 << 10,
        align: 4096,
        steps: 3000,
        is_everything: false,
        ..WHOLE
    },
];

const WHOLE: Profile = Profile {
    name: "",
    file_bytes_max: 0,
    step_bytes_max: 65_536,
    align: 1,
    steps: 6000,
    is_msync_left_out: false,
    is_everything: true,
};

/// Runs every profile with several seeds.
pub(super) fn run(ground: &mut Ground, effort: &mut Effort, tally: &mut Tally) -> Outcome {
    let program = match tools::installed_crate("fsx", VERSION) {
        Ok(program) => program,
        Err(error) => {
            tally.not_run(format!("fsx cannot be installed: {error}"));
            return Ok(());
        }
    };
    let mut steps = 0;
    loop {
        for profile in PROFILES {
            let (first, is_long) = (effort.seed() * SEEDS, effort.is_long());
            let runs = (first..first + SEEDS).map(|seed| Run { profile, seed, is_long });
            let runs: Vec<_> = runs.collect();
            steps += runs.iter().map(|run| u64::from(run.steps())).sum::<u64>();
            let name = |run: &Run<'_>| format!("{}, seed {}", profile.name, run.seed);
            tally.cases_at_once(&runs, name, |run| run.run(ground, &program));
        }
        if !effort.next_round() {
            break;
        }
    }
    tally.note(format!("{steps} steps"));
    Ok(())
}

struct Run<'a> {
    profile: &'a Profile,
    seed: u64,
    is_long: bool,
}

impl Run<'_> {
    fn steps(&self) -> u32 {
        self.profile.steps * if self.is_long { LONG_FACTOR } else { 1 }
    }

    fn run(&self, ground: &Ground, program: &Path) -> Outcome {
        let settings = ground
            .outside("settings")?
            .join(format!("fsx-{}-{}.toml", self.profile.name, self.seed));
        fs::write(&settings, self.settings())?;
        let file = ground.dir().join(format!("{}-{}", self.profile.name, self.seed));
        Step::new(program)
            .args(["-q", "-S", &self.seed.to_string(), "-N", &self.steps().to_string(), "-f"])
            .arg(&settings)
            .arg("-P")
            .arg(ground.outside("artifacts")?)
            .arg(&file)
            .quiet()?;
        fs::remove_file(&file).map_err(Failure::from)
    }

    fn settings(&self) -> String {
        let Profile { file_bytes_max, step_bytes_max, align, is_msync_left_out, .. } = self.profile;
        // posix_fallocate of nothing is EINVAL everywhere, and it does not keep to the alignment.
        let fallocate = if self.profile.is_everything { 2 } else { 0 };
        format!(
            "flen = {file_bytes_max}\nnomsyncafterwrite = {is_msync_left_out}\n\
             [opsize]\nmin = {align}\nmax = {step_bytes_max}\nalign = {align}\n\
             [weights]\nclose_open = 2\ninvalidate = 1\nmapread = 10\nmapwrite = 10\nread = 10\n\
             write = 10\ntruncate = 4\nfsync = 1\nfdatasync = 1\nposix_fallocate = {fallocate}\n\
             punch_hole = 3\nsendfile = 3\nposix_fadvise = 2\ncopy_file_range = 3\n"
        )
    }
}
