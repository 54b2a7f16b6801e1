//! Writes all tables again by the store's design: the daemon does it if the store is mounted, else this process.
//!
//! The client asks for one step after the other. So the daemon can serve others in between, and an interrupted redesign continues where
//! it stopped.

use std::path::Path;

use varve::{Error, FileSystem, Result};
use varve_engine::Redesign;
use varve_fs::MountOptions;

use crate::control::{Request, client};
use crate::target::Target;

/// Writes all tables of the store at `path`, or of the one that is mounted there, by its design. Calls `progress` after each step.
pub fn redesign(path: &Path, progress: &mut dyn FnMut(&Redesign)) -> Result<Redesign> {
    let target = Target::at(path)?;
    if target.is_served()? {
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
                "the finished part stays; make room if the storage is full, and run the same command again",
            )
        })?;
        progress(&left);
        if left.done {
            return Ok(left);
        }
    }
}
