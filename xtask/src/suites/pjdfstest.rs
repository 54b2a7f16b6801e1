//! The crate `pjdfstest`: what each call does and which error it gives, case by case, as several users.
//!
//! All cases that exist on Linux run, those that remount read-only too. Nothing is expected to fail; what
//! may be skipped is [`SKIPS`]. The cases about read-only file systems run by themselves: other cases leave
//! removed files open until the suite ends, and a file system with such files cannot become read-only.

use std::fs;

use super::{Effort, Ground, Tally, tools};
use crate::run::{Outcome, Step};

const VERSION: &str = "0.2.2";

/// Cases that may be skipped on a mount, and why.
const SKIPS: &[(&str, &str)] =
    &[("link::link_count_max", "pathconf tells no LINK_MAX of a FUSE file system")];

/// In the names of all cases that remount, and of no others.
const READ_ONLY_CASES: &str = "erofs";

/// What the suite says of a case that may not remount.
const NO_REMOUNT: &str = "allow_remount";

/// A case on a plain directory that would remount the machine's own file system.
const REMOUNT: &str = "remounts are for the mount under test only";

/// Runs it.
pub(super) fn run(ground: &mut Ground, effort: &mut Effort, tally: &mut Tally) -> Outcome {
    let program = match tools::installed_crate("pjdfstest", VERSION) {
        Ok(program) => program,
        Err(error) => {
            tally.not_run(format!("pjdfstest cannot be installed: {error}"));
            return Ok(());
        }
    };
    ground.stand_in_for_mount_helper()?;
    let secondary = ground.outside("secondary")?;
    Step::new("mount").args(["-t", "tmpfs", "none"]).arg(&secondary).quiet()?;
    loop {
        let settings = ground.outside("settings")?.join("pjdfstest.toml");
        for is_read_only in [false, true] {
            fs::write(&settings, settings_for(is_read_only && ground.is_varve()))?;
            let output = Step::new(&program)
                .arg("-c")
                .arg(&settings)
                .arg("-p")
                .arg(ground.dir())
                .arg("-s")
                .arg(&secondary)
                .args(is_read_only.then_some(READ_ONLY_CASES))
                .env("NO_COLOR", "1")
                .output()?;
            count(&String::from_utf8_lossy(&output.stdout), ground.is_varve(), tally)?;
        }
        if !effort.next_round() {
            break;
        }
    }
    Step::new("umount").arg(&secondary).quiet()
}

fn settings_for(may_remount: bool) -> String {
    // Birth times and a changed ctime after rename are choices of Varve that the suite then checks.
    format!(
        "[features]\nposix_fallocate = {{}}\nutime_now = {{}}\nutimensat = {{}}\nrename_ctime = {{}}\n\
         stat_st_birthtime = {{}}\n[settings]\nnaptime = 0.02\nallow_remount = {may_remount}\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n"
    )
}

/// Reads the lines `NAME STATUS` and, indented below a failed or skipped one, why.
fn count(output: &str, is_varve: bool, tally: &mut Tally) -> Outcome {
    let mut lines = output.lines().peekable();
    let (mut is_whole, mut cases) = (false, 0);
    while let Some(line) = lines.next() {
        is_whole |= line.starts_with("Summary:");
        let Some((name, status)) = line.split_once(char::is_whitespace) else { continue };
        if !name.contains("::") {
            continue;
        }
        cases += 1;
        let mut why = String::new();
        while let Some(reason) = lines.next_if(|line| line.starts_with('\t')) {
            why = format!("{why} {}", reason.trim());
        }
        let why = why.trim();
        match status.trim() {
            "ok" => tally.passed(1),
            "skipped" => match SKIPS.iter().find(|(case, _)| *case == name) {
                Some((_, reason)) if is_varve => tally.skipped(name, reason),
                // Has its turn in the other run.
                _ if is_varve && why.contains(NO_REMOUNT) => {}
                _ if !is_varve && why.contains(NO_REMOUNT) => tally.skipped(name, REMOUNT),
                _ => tally.failed(name, &format!("skipped, which is not listed: {why}")),
            },
            status => tally.failed(name, &format!("{status}: {why}")),
        }
    }
    match is_whole {
        false => Err("pjdfstest ended before its summary".into()),
        true if cases == 0 => Err("pjdfstest had no case".into()),
        true => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_and_unlisted_skips_fail() {
        let output = "chmod::a::b     ok\nlink::link_count_max   skipped\n\twhy\nopen::x  skipped\n\tno\n\
                      mkdir::y  FAILED\n\tcalled unwrap\n\nSummary: 2 failed\n";
        let mut tally = Tally::new("pjdfstest");
        count(output, true, &mut tally).unwrap();
        assert!(tally.has_failed());
        let mut good = Tally::new("pjdfstest");
        count("a::b ok\nlink::link_count_max skipped\nSummary: 0\n", true, &mut good).unwrap();
        assert!(!good.has_failed());
        assert!(count("a::b ok\n", true, &mut good).is_err());
        assert!(count("Summary: 0\n", true, &mut good).is_err());
    }
}
