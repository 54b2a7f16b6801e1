//! The rules of the workspace that the compiler does not know.
//!
//! 1. [`rooms`]: imports between crates follow the table of rooms.
//! 2. [`shape`]: lengths of files and functions, opening comments of modules.
//! 3. [`text`]: words and addresses that must not be in the repository.
//! 4. [`promises`]: each point of docs/semantics.md has its test, and each test its point.
//! 5. [`circles`]: files of a crate import each other in small circles only.
//!
//! Each rule is a function of its input that returns findings; only this module reads files. A finding
//! that begins with `note:` is shown and does not fail the check.

mod circles;
mod imports;
mod promises;
mod rooms;
mod shape;
mod text;

use std::fs;
use std::path::Path;

use crate::run::{Outcome, Step};

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The file or crate.
    place: String,
    /// Line number from 1, if the finding has one.
    line: Option<usize>,
    /// The rule that is broken, and how.
    what: String,
    /// False if it is only worth a look.
    fails: bool,
}

impl Finding {
    fn failure(place: &str, line: Option<usize>, what: String) -> Finding {
        Finding { place: place.to_owned(), line, what, fails: true }
    }

    fn note(place: &str, line: Option<usize>, what: String) -> Finding {
        Finding { place: place.to_owned(), line, what, fails: false }
    }
}

/// Applies every rule to the files that git knows under `root`, prints the findings and fails if one of
/// them is more than a note.
pub(crate) fn check_workspace(root: &Path) -> Outcome {
    let metadata = Step::new("cargo")
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .dir(root)
        .capture()?;
    let mut findings = rooms::check(&metadata)?;
    let listing =
        Step::new("git").args(["ls-files", "-co", "--exclude-standard"]).dir(root).capture()?;
    let mut files = 0_usize;
    let mut promises = promises::Promises::default();
    let mut circles = circles::Circles::default();
    for name in listing.lines() {
        let Ok(bytes) = fs::read(root.join(name)) else { continue };
        let Ok(content) = String::from_utf8(bytes) else { continue };
        files += 1;
        findings.extend(text::check(name, &content));
        promises.read(name, &content);
        if name.ends_with(".rs") {
            findings.extend(shape::check(name, &content));
            circles.read(name, &content);
        }
    }
    findings.extend(promises.findings());
    findings.extend(circles.findings());
    let failures = findings.iter().filter(|finding| finding.fails).count();
    for finding in &findings {
        let kind = if finding.fails { "error" } else { "note" };
        let line = finding.line.map(|line| format!(":{line}")).unwrap_or_default();
        println!("{kind}: {}{line}: {}", finding.place, finding.what);
    }
    println!("tidy: {files} files, {failures} errors, {} notes", findings.len() - failures);
    if failures > 0 { Err(format!("{failures} rules broken").into()) } else { Ok(()) }
}
