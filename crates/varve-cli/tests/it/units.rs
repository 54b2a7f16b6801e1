//! The unit by which systemd runs a server.

use std::fs;
use std::path::{Path, PathBuf};

use varve_testkit::Command;

use crate::harness::{run, varve};

const BINARY: &str = "/usr/bin/varve";

fn unit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/varve-serve@.service")
}

/// The values of a setting.
fn values<'a>(unit: &'a str, setting: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(setting)?.strip_prefix('=')).collect()
}

/// The options of `varve serve`, each with its default.
fn options() -> Vec<(String, Option<String>)> {
    let help = String::from_utf8(run(varve().args(["serve", "--help"])).stdout).unwrap();
    let mut options: Vec<(String, Option<String>)> = Vec::new();
    for line in help.lines().map(str::trim) {
        if let Some(at) = line.find("--").filter(|_| line.starts_with('-')) {
            let name = line[at..].split(' ').next().unwrap();
            options.push((name.to_owned(), None));
        }
        let default = line.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
        if let (Some((default, _)), Some(option)) = (default, options.last_mut()) {
            option.1 = Some(default.to_owned());
        }
    }
    options
}

#[test]
fn the_unit_gives_options_that_the_program_has() {
    let unit = fs::read_to_string(unit()).unwrap();
    let options = options();
    let start = values(&unit, "ExecStart");
    assert_eq!(start, [format!("{BINARY} serve $VARVE_SERVE_OPTIONS %f")]);
    // Those of the example, too.
    let named = unit.split_whitespace().filter_map(|word| {
        let word = word.trim_end_matches([':', '.', ',']);
        word.split('=').find(|part| part.starts_with("--"))
    });
    let of_systemctl = ["--now", "--path", "--template"];
    let named: Vec<&str> = named.filter(|name| !of_systemctl.contains(name)).collect();
    assert!(named.len() >= 4, "{named:?}");
    for name in named {
        assert!(options.iter().any(|(option, _)| option == name), "`varve serve` has no {name}");
    }
    let (_, stop_max) = options.iter().find(|(option, _)| option == "--stop-max").unwrap();
    let stop_max: u64 = stop_max.as_ref().unwrap().parse().unwrap();
    let [timeout] = values(&unit, "TimeoutStopSec")[..] else { panic!("{unit}") };
    assert!(timeout.parse::<u64>().unwrap() > stop_max, "systemd kills a server that ends in time");
    assert_eq!(values(&unit, "Type"), ["notify"]);
}

#[test]
fn systemd_understands_the_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return varve_testkit::skipped("there is no systemd-analyze on this machine");
    }
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(unit()).unwrap();
    let copy = dir.path().join("varve-serve@.service");
    // The program need not be installed here.
    fs::write(&copy, text.replace(BINARY, env!("CARGO_BIN_EXE_varve"))).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let verified = run(verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&copy));
    let said = [verified.stdout, verified.stderr].concat();
    assert_eq!(String::from_utf8_lossy(&said), "");
}
