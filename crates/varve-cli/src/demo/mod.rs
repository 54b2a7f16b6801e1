//! A demonstration that needs no preparation and leaves nothing behind.
//!
//! 1. Format a store in a temporary directory and mount it, in this process. Without /dev/fuse or a right to
//!    mount, the demonstration goes on through the library alone, and says so.
//! 2. Do the same work ([`steps`]) on a plain directory beside the store, on the mount, and on a second store
//!    through the library, and tell the time of each.
//! 3. Unmount, check the store, mount again, compare every name, size and byte with the plain directory.
//! 4. Unmount and remove everything; also after a failure and on Ctrl-C ([`scene`]).
//!
//! [`cluster`] is another one, of a store that a server serves to two mounts.

pub(crate) mod cluster;
mod place;
mod scene;
mod stage;
mod steps;

use std::time::Duration;

use serde::Serialize;

use place::{Directory, Library, Place};
use scene::Scene;
use steps::Measured;
use varve::{Error, Result, size};
use varve_daemon::mount::AttachError;

/// The size of the demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Plan {
    /// Files to make.
    pub(crate) files: u32,
    /// Directories they are spread over, at least 1.
    pub(crate) dirs: u32,
    /// Bytes of the large file.
    pub(crate) large_bytes: usize,
}

/// The figures of one step.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The step.
    pub(crate) step: &'static str,
    /// Operations.
    pub(crate) operations: u64,
    /// Bytes moved, of steps that move bytes.
    pub(crate) bytes: u64,
    /// Time on a plain directory, in seconds.
    pub(crate) plain_s: f64,
    /// Time on the mount, in seconds.
    pub(crate) mount_s: Option<f64>,
    /// Time through the library, in seconds.
    pub(crate) library_s: f64,
}

/// What the demonstration measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// The size of the demonstration.
    pub(crate) plan: Plan,
    /// How the store was mounted; `None` if it could not be.
    pub(crate) method: Option<String>,
    /// The ways to mount that did not work, or why nothing was mounted.
    pub(crate) refusals: Vec<String>,
    /// The steps.
    pub(crate) rows: Vec<Row>,
    /// Files compared byte for byte after the store was opened again.
    pub(crate) files_compared: u64,
    /// Bytes that the store takes in the end.
    pub(crate) store_bytes: u64,
}

/// Runs the demonstration; passes each line of output to `tell`.
pub(crate) fn run(plan: Plan, tell: &mut dyn FnMut(&str)) -> Result<Figures> {
    let mut scene = Scene::new()?;
    let mounted = match scene.mount() {
        Err(AttachError::Failed(error)) => return Err(error),
        Err(AttachError::NotAllowed(error)) => Err(error),
        Ok(mounted) => Ok(mounted),
    };
    let (method, refusals) = match &mounted {
        Ok((method, refusals)) => (Some(method.clone()), refusals.clone()),
        Err(error) => (None, vec![error.message().to_owned()]),
    };
    tell_how(&scene, method.as_deref(), &refusals, tell);
    let plain = Directory::new(scene.plain_dir());
    let mount = Directory::new(scene.mount_point());
    let rows = {
        let library = Library::new(scene.library()?.vfs());
        let on_mount: Option<&dyn Place> = if mounted.is_ok() { Some(&mount) } else { None };
        work(&plan, &plain, on_mount, &library, tell)?
    };
    if mounted.is_ok() {
        scene.unmount()?;
        scene.check()?;
        scene.mount()?;
    }
    let files_compared = match &mounted {
        Ok(_) => steps::compare(&plan, &plain, &mount)?,
        Err(_) => {
            scene.reopen_library()?;
            steps::compare(&plan, &plain, &Library::new(scene.library()?.vfs()))?
        }
    };
    let how = if mounted.is_ok() { "Unmounted, checked, mounted" } else { "Closed and opened" };
    tell(&format!(
        "\n{how} again: {files_compared} files compared, every name, size and byte is right."
    ));
    scene.close()?;
    let store_bytes = scene.store_bytes();
    tell(&format!("The store took {}. Everything is removed again.", size::show(store_bytes)));
    scene.remove()?;
    Ok(Figures { plan, method, refusals, rows, files_compared, store_bytes })
}

fn tell_how(scene: &Scene, method: Option<&str>, refusals: &[String], tell: &mut dyn FnMut(&str)) {
    match method {
        Some(method) => {
            tell(&format!(
                "A new store is mounted on {} by {method}.",
                scene.mount_point().display()
            ));
            for refusal in refusals {
                tell(&format!("  not by {refusal}"));
            }
        }
        None => {
            tell("Nothing could be mounted here, so this goes through the library alone:");
            for refusal in refusals {
                tell(&format!("  {refusal}"));
            }
        }
    }
}

/// Runs each step on each place, one after the other, so that a slow moment of the machine meets all.
fn work(
    plan: &Plan,
    plain: &dyn Place,
    mount: Option<&dyn Place>,
    library: &dyn Place,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Row>> {
    tell(
        "\nThe same work on a plain directory, on the mount, and through the library without the kernel:\n",
    );
    tell(&format!("{:<34} {:>14} {:>14} {:>14}", "", "plain", "varve mount", "varve library"));
    let mut rows = Vec::new();
    for step in steps::STEPS {
        let on = |place: &dyn Place| {
            (step.run)(plan, place)
                .map_err(|error| Error::failed(format!("{}: {error}", step.name)))
        };
        let on_plain = on(plain)?;
        let on_mount = mount.map(on).transpose()?;
        let on_library = on(library)?;
        let cell = |measured: Option<&Measured>| measured.map_or_else(|| "-".to_owned(), rate);
        tell(&format!(
            "{:<34} {:>14} {:>14} {:>14}",
            title(step.name, &on_plain),
            cell(Some(&on_plain)),
            cell(on_mount.as_ref()),
            cell(Some(&on_library))
        ));
        rows.push(Row {
            step: step.name,
            operations: on_plain.operations,
            bytes: on_plain.bytes,
            plain_s: on_plain.time.as_secs_f64(),
            mount_s: on_mount.map(|measured| measured.time.as_secs_f64()),
            library_s: on_library.time.as_secs_f64(),
        });
    }
    Ok(rows)
}

fn title(name: &str, measured: &Measured) -> String {
    match (measured.operations, measured.bytes) {
        (0 | 1, 0) => name.to_owned(),
        (0 | 1, bytes) => format!("{name} ({})", size::show(bytes)),
        (operations, _) => format!("{name} ({operations})"),
    }
}

/// Microseconds per operation, bytes per second, or the time, whichever tells most.
fn rate(measured: &Measured) -> String {
    let seconds = measured.time.max(Duration::from_nanos(1)).as_secs_f64();
    match (measured.operations, measured.bytes) {
        (0 | 1, 0) => format!("{:.1} ms", seconds * 1e3),
        (0 | 1, bytes) => format!("{}/s", size::show((bytes as f64 / seconds) as u64)),
        (operations, _) => format!("{:.1} us each", seconds * 1e6 / operations as f64),
    }
}
