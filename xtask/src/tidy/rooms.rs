//! Which crate may import which.
//!
//! Imports run downward only; an arrow that is not in [`ROOMS`] is an error that names it. Dev-dependencies
//! may add the test kit, which no product depends on.

use serde::Deserialize;

use super::Finding;
use crate::run::Failure;

/// The table of rooms: each crate and the crates of the workspace it may import. A new room or a new
/// arrow is a decision about the architecture and is made here.
const ROOMS: &[(&str, &[&str])] = &[
    ("varve-types", &[]),
    ("varve-env", &["varve-types"]),
    ("varve-storage", &["varve-types", "varve-env"]),
    ("varve-format", &["varve-types"]),
    ("varve-engine", &["varve-types", "varve-env", "varve-format"]),
    ("varve-schema", &["varve-types"]),
    ("varve-vfs", &["varve-types"]),
    ("varve-namespace", &["varve-types", "varve-schema", "varve-vfs"]),
    ("varve-session", &["varve-types", "varve-schema", "varve-vfs"]),
    (
        "varve-fs",
        &[
            "varve-types",
            "varve-env",
            "varve-schema",
            "varve-engine",
            "varve-vfs",
            "varve-namespace",
            "varve-session",
        ],
    ),
    ("varve-fuse", &["varve-types", "varve-vfs"]),
    ("varve-nfs", &["varve-types", "varve-vfs"]),
    ("varve-wire", &["varve-types", "varve-vfs"]),
    ("varve-meta", &["varve-types", "varve-vfs", "varve-wire"]),
    ("varve-server", &["varve-types", "varve-vfs", "varve-wire", "varve-meta"]),
    ("varve-client", &["varve-types", "varve-vfs", "varve-wire"]),
    ("varve-trace", &["varve-schema"]),
    (
        "varve",
        &["varve-types", "varve-env", "varve-storage", "varve-engine", "varve-vfs", "varve-fs"],
    ),
    (
        "varve-daemon",
        &[
            "varve-types",
            "varve-env",
            "varve-engine",
            "varve-vfs",
            "varve-fs",
            "varve-fuse",
            "varve-nfs",
            "varve-wire",
            "varve-server",
            "varve-client",
            "varve",
        ],
    ),
    (
        "varve-cli",
        &[
            "varve-types",
            "varve-env",
            "varve-storage",
            "varve-format",
            "varve-engine",
            "varve-schema",
            "varve-vfs",
            "varve-fs",
            "varve-fuse",
            "varve-server",
            "varve",
            "varve-daemon",
        ],
    ),
    ("varve-testkit", &["varve-types", "varve-env", "varve-format", "varve-schema", "varve-vfs"]),
    (
        "varve-bench",
        &[
            "varve-types",
            "varve-env",
            "varve-vfs",
            "varve-fs",
            "varve-wire",
            "varve-client",
            "varve-trace",
            "varve",
        ],
    ),
    ("xtask", &[]),
];

/// Crates from outside that not every room may use: a program that embeds Varve gets no command line and no signal handlers with it.
const FRONT_END_CRATES: &[(&str, &[&str])] = &[
    ("clap", &["varve-cli", "varve-bench", "xtask"]),
    ("signal-hook", &["varve-daemon", "varve-cli", "varve-bench"]),
];

/// The crate that only tests may import.
const TEST_ROOM: &str = "varve-testkit";

/// Arrows that only tests have: the file system is tried on storage that it does not know, mounts with the locks of
/// other mounts, and the server with the file system that it serves and with clients.
const TEST_ARROWS: &[(&str, &str)] = &[
    ("varve-fs", "varve-storage"),
    ("varve-fuse", "varve-meta"),
    ("varve-server", "varve-client"),
    ("varve-server", "varve-env"),
    ("varve-server", "varve-fs"),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    kind: Option<String>,
    /// Where it lies, for a crate of the workspace.
    path: Option<String>,
}

/// Compares the output of `cargo metadata --no-deps` with the table.
pub(super) fn check(metadata: &str) -> Result<Vec<Finding>, Failure> {
    let metadata: Metadata = serde_json::from_str(metadata)?;
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let from = package.name.as_str();
        let Some((_, allowed)) = ROOMS.iter().find(|(room, _)| *room == from) else {
            findings.push(Finding::failure(
                from,
                None,
                "is not in the table of rooms (xtask/src/tidy/rooms.rs)".to_owned(),
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let to = dependency.name.as_str();
            if dependency.path.is_none() {
                let users = FRONT_END_CRATES.iter().find(|(outside, _)| *outside == to);
                if users.is_some_and(|(_, users)| !users.contains(&from)) {
                    let what = format!("only the front ends use {to} (xtask/src/tidy/rooms.rs)");
                    findings.push(Finding::failure(from, None, what));
                }
                continue;
            }
            let is_dev = dependency.kind.as_deref() == Some("dev");
            let is_test_kit = to == TEST_ROOM && from != "xtask";
            let is_for_tests = is_dev && (is_test_kit || TEST_ARROWS.contains(&(from, to)));
            if !is_for_tests && !allowed.contains(&to) {
                findings.push(Finding::failure(
                    from,
                    None,
                    format!("new arrow {from} -> {to}: not in the table of rooms"),
                ));
            }
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(from: &str, to: &str, kind: &str, path: &str) -> String {
        format!(
            r#"{{"packages":[{{"name":"{from}","dependencies":[{{"name":"{to}","kind":{kind},"path":{path}}}]}}]}}"#
        )
    }

    fn arrows(from: &str, to: &str, kind: &str, path: &str) -> Vec<String> {
        let findings = check(&metadata(from, to, kind, path)).expect("well-formed metadata");
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn an_arrow_of_the_table_passes() {
        assert!(arrows("varve-fs", "varve-engine", "null", "\"/x\"").is_empty());
    }

    #[test]
    fn a_new_arrow_is_named() {
        let found = arrows("varve-fuse", "varve-engine", "null", "\"/x\"");
        assert_eq!(found, ["new arrow varve-fuse -> varve-engine: not in the table of rooms"]);
        assert_eq!(arrows("varve-engine", "varve-fs", "\"build\"", "\"/x\"").len(), 1);
    }

    #[test]
    fn the_test_kit_is_for_tests_only() {
        assert!(arrows("varve-engine", "varve-testkit", "\"dev\"", "\"/x\"").is_empty());
        assert_eq!(arrows("varve-engine", "varve-testkit", "null", "\"/x\"").len(), 1);
        assert_eq!(arrows("xtask", "varve-testkit", "\"dev\"", "\"/x\"").len(), 1);
    }

    #[test]
    fn crates_from_outside_are_not_rooms() {
        assert!(arrows("varve-types", "thiserror", "null", "null").is_empty());
    }

    #[test]
    fn front_ends_alone_have_a_command_line_and_signal_handlers() {
        for outside in ["clap", "signal-hook"] {
            assert!(arrows("varve-cli", outside, "null", "null").is_empty());
            assert_eq!(arrows("varve", outside, "null", "null").len(), 1);
        }
    }

    #[test]
    fn a_crate_outside_the_table_is_found() {
        assert_eq!(arrows("varve-moon", "thiserror", "null", "null").len(), 1);
    }

    #[test]
    fn the_table_has_no_cycle() {
        for (at, (room, imports)) in ROOMS.iter().enumerate() {
            for import in *imports {
                let to = ROOMS.iter().position(|(name, _)| name == import);
                assert!(to.is_some_and(|to| to < at), "{room} -> {import} runs upward");
            }
        }
    }
}
