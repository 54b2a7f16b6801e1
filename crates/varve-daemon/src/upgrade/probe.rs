//! Asks a program whether it can take a mount over, before anything stops.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use varve::{Error, Result};

use super::abilities::{Abilities, PROBE};
use super::successor;

/// How long a binary may take to say whether it can take over.
const PROBE_PATIENCE: Duration = Duration::from_secs(10);
const PROBE_POLL: Duration = Duration::from_millis(5);

/// Asks `binary` whether it can take over from this process, with the same command line. Fails if it cannot.
pub(crate) fn probe(binary: &Path) -> Result<()> {
    let refused = |reason: String| {
        let text = format!("{} cannot take the mount over: {reason}", binary.display());
        Error::failed(text)
            .hint("give a varve of this version or newer, or unmount the store and mount it again")
    };
    let mut child = Command::new(binary)
        .args(successor::arguments(PROBE))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| refused(error.to_string()))?;
    let mut waited = Duration::ZERO;
    while child.try_wait().map_err(|error| refused(error.to_string()))?.is_none() {
        if waited > PROBE_PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(refused("it does not answer in time".to_owned()));
        }
        thread::sleep(PROBE_POLL);
        waited += PROBE_POLL;
    }
    let output = child.wait_with_output().map_err(|error| refused(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or("it says nothing").to_owned();
        return Err(refused(format!("{} ({first})", output.status)));
    }
    match serde_json::from_slice(&output.stdout) {
        Ok(abilities) if Abilities::suffice(&abilities) => Ok(()),
        Ok(other) => {
            let own = Abilities::of_this_version();
            Err(refused(format!("it has {other}; this daemon has {own}")))
        }
        Err(_) => Err(refused("it is no varve".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_varve_is_refused() {
        for (binary, reason) in [
            ("/bin/true", "no varve"),
            ("/bin/false", "exit status: 1"),
            ("/nonexistent", "No such"),
        ] {
            let error = probe(Path::new(binary)).unwrap_err();
            assert!(error.message().contains(reason), "{error}");
        }
    }
}
