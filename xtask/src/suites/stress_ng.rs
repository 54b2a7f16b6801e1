//! `stress-ng`: the stressors of its classes `filesystem` and `io`, each for a moment, with its checks on.
//!
//! A stressor that the file system or the kernel cannot run ends at once and says so; which ones may is
//! [`SKIPS`].

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Effort, Ground, Tally, tools};
use crate::run::{Failure, Outcome, Step};

/// Classes whose stressors run.
const CLASSES: &[&str] = &["filesystem", "io"];

/// Stressors of other classes that work on files.
const MORE: &[&str] = &["fault", "mmap", "msync", "sendfile", "splice"];

/// Stressors that may be skipped, and why.
const SKIPS: &[(&str, &str)] = &[
    ("bind-mount", "stress-ng itself leaves it out: it may hang the machine"),
    ("binderfs", "is about another file system"),
    ("rawdev", "is about block devices"),
    ("fiemap", "FUSE has no FIEMAP"),
    ("verity", "FUSE without fs-verity"),
    ("procfs", "is about another file system"),
];

/// Exit statuses of stress-ng.
const PASSED: i32 = 0;
const NO_RESOURCES: i32 = 3;
const NOT_IMPLEMENTED: i32 = 4;

/// So many stressors run beside each other.
const AT_ONCE: usize = 2;

/// Runs every stressor for a second, or longer in a soak.
pub(super) fn run(ground: &mut Ground, effort: &mut Effort, tally: &mut Tally) -> Outcome {
    let Some(program) = tools::find("stress-ng") else {
        tally.not_run(tools::missing("stress-ng"));
        return Ok(());
    };
    let dir = ground.dir().join("stress");
    std::fs::create_dir(&dir)?;
    // Workers give up root.
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777))?;
    let mut stressors = Vec::new();
    for class in CLASSES {
        stressors.extend(stressors_of(&program, class)?);
    }
    stressors.extend(MORE.iter().map(|name| (*name).to_owned()));
    stressors.sort();
    stressors.dedup();
    for (name, why) in SKIPS.iter().filter(|(name, _)| stressors.iter().any(|one| one == name)) {
        tally.skipped(name, why);
    }
    stressors.retain(|stressor| SKIPS.iter().all(|(name, _)| name != stressor));
    loop {
        let seconds = if effort.is_long() { 10 } else { 1 };
        for some in stressors.chunks(AT_ONCE) {
            tally.cases_at_once(some, Clone::clone, |stressor| {
                run_one(&program, stressor, &dir, seconds)
            });
        }
        if !effort.next_round() {
            break;
        }
    }
    std::fs::remove_dir_all(&dir).map_err(Failure::from)
}

/// The names that `stress-ng --class CLASS?` lists after a colon.
fn stressors_of(program: &Path, class: &str) -> Result<Vec<String>, Failure> {
    let output = Step::new(program).args(["--class", &format!("{class}?")]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, names) = text
        .split_once("stressors:")
        .ok_or_else(|| format!("stress-ng lists no stressors of class {class}: {text}"))?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

fn run_one(program: &Path, stressor: &str, dir: &Path, seconds: u32) -> Outcome {
    // `timeout` is for a stressor that hangs; its own limit ends all others.
    let output = Step::new("timeout")
        .args(["-k", "5", &(seconds + 60).to_string()])
        .arg(program)
        .args([&format!("--{stressor}"), "2", "--timeout", &seconds.to_string(), "--verify"])
        .args(["--temp-path", "."])
        .args(["--mmap-file", "--mmap-bytes", "16m", "--hdd-bytes", "64m"])
        // A relative path: with an absolute one the stressor io-uring looks for the file that it has removed, on
        // any file system.
        .dir(dir)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| ["fail:", "error:", "skipping"].iter().any(|word| line.contains(word)))
        .take(4)
        .collect();
    match output.status.code() {
        Some(PASSED) if complaints.is_empty() => Ok(()),
        Some(PASSED | NO_RESOURCES | NOT_IMPLEMENTED) => {
            Err(format!("skipped, which is not listed: {}", complaints.join("\n")).into())
        }
        _ => Err(format!("{}\n{}", output.status, complaints.join("\n")).into()),
    }
}
