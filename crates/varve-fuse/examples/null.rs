//! Mounts a file system without storage: the names and attributes of `varve_testkit`'s model, in memory. What an
//! operation costs here is what the kernel's interface and this crate cost, whatever the file system.
//!
//! ```text
//! cargo run --release -p varve-fuse --example null DIR [auto|dev|uring]
//! ```
//!
//! Serves until the directory is unmounted; everything is gone then. `varve-bench` drives it as the target `null`.
#![allow(clippy::disallowed_methods, reason = "a measurement drives the machine itself")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use varve_fuse::{MountOptions, Session, SessionOptions, Transport, mount};
use varve_testkit::model::ModelFs;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (dir, transport) = match &arguments[..] {
        [dir] => (dir, "auto"),
        [dir, transport] => (dir, transport.as_str()),
        _ => return usage(),
    };
    let transport = match transport {
        "auto" => None,
        "dev" => Some(Transport::Dev),
        "uring" => Some(Transport::Uring),
        _ => return usage(),
    };
    match serve(Path::new(dir), transport) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: null DIR [auto|dev|uring]");
    ExitCode::from(2)
}

fn serve(dir: &Path, transport: Option<Transport>) -> Result<(), Box<dyn std::error::Error>> {
    let mounted = mount(dir, &MountOptions::new("null"))?;
    let options = SessionOptions { transport, ..SessionOptions::default() };
    let session = Session::new(Arc::new(ModelFs::on_this_machine()), mounted, &options)?;
    eprintln!("{} is served over {}", dir.display(), session.transport());
    session.run()?;
    Ok(())
}
