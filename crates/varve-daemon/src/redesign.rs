//! Finishing a change of design at once: by the daemon if the store is mounted, else on the store itself.
//!
//! The work is asked for step by step, so that the daemon has time for others and who loses patience may leave: what
//! is done is done, and the next one goes on from there.

use std::path::Path;

use varve::{Error, FileSystem, Result};
use varve_engine::Redesign;
use varve_fs::MountOptions;

use crate::control::{Request, client};
use crate::holder;
use crate::target::Target;

/// Makes all tables of the store at `path`, or the one mounted there, what its design says; calls `progress` after each
/// step.
pub fn redesign(path: &Path, progress: &mut dyn FnMut(&Redesign)) -> Result<Redesign> {
    let target = Target::at(path)?;
    if holder::is_served(&target.store)? {
        return all_steps(progress, || {
            let answer = client::ask(&target, &Request::Redesign)?;
            serde_json::from_value(answer)
                .map_err(|error| Error::not_understood("the daemon's answer", error))
        });
    }
    let file_system = FileSystem::open(&target.store, &MountOptions::default())?;
    let fs = file_system.inner();
    let done = all_steps(progress, || Ok(fs.redesign()?));
    drop(fs);
    file_system.close()?;
    done
}

fn all_steps(
    progress: &mut dyn FnMut(&Redesign),
    mut step: impl FnMut() -> Result<Redesign>,
) -> Result<Redesign> {
    loop {
        let left = step().map_err(|error| {
            error.or_hint(
                "what is done stays; free some room if it is full, and give the same command again",
            )
        })?;
        progress(&left);
        if left.done {
            return Ok(left);
        }
    }
}
