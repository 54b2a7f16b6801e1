//! Mounts a file system without storage: the names and attributes of `varve_testkit`'s model, in memory. What an
//! operation costs here is what the kernel's interface and this crate cost, whatever the file system.
//!
//! ```text
//! cargo run --release -p varve-fuse --example null DIR [auto|dev|uring [noallow_other]]
//! ```
//!
//! With `noallow_other` the mount is one of root alone, where no permissions are checked.
//! Serves until the directory is unmounted; everything is gone then. `varve-bench` drives it as the target `null`.
#![allow(clippy::disallowed_methods, reason = "a measurement drives the machine itself")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use varve_fuse::{MountOptions, Session, SessionOptions, Transport, mount};
use varve_testkit::model::ModelFs;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (dir, transport, root_alone) = match &arguments[..] {
        [dir] => (dir, "auto", false),
        [dir, transport] => (dir, transport.as_str(), false),
        [dir, transport, alone] if alone == "noallow_other" => (dir, transport.as_str(), true),
        _ => return usage(),
    };
    let transport = match transport {
        "auto" => None,
        "dev" => Some(Transport::Dev),
        "uring" => Some(Transport::Uring),
        _ => return usage(),
    };
    match serve(Path::new(dir), transport, root_alone) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: null DIR [auto|dev|uring [noallow_other]]");
    ExitCode::from(2)
}

fn serve(
    dir: &Path,
    transport: Option<Transport>,
    root_alone: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let defaults = MountOptions::new("null");
    let options = MountOptions {
        allow_other: defaults.allow_other && !root_alone,
        default_permissions: !root_alone,
        ..defaults
    };
    let mounted = mount(dir, &options)?;
    let options = SessionOptions { transport, ..SessionOptions::default() };
    let session = Session::new(Arc::new(ModelFs::on_this_machine()), mounted, &options)?;
    eprintln!("{} is served over {}", dir.display(), session.transport());
    session.run()?;
    Ok(())
}
