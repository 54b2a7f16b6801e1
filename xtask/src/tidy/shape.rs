//! Lengths of files and functions, and opening comments.
//!
//! Works on lines of rustfmt's output: a function ends at the first line that is a closing brace with the
//! indentation of its `fn`.

use super::Finding;

/// A file with more lines must be split.
const FILE_LINES_MAX: usize = 800;
/// A file with more lines is listed.
const FILE_LINES_NOTED: usize = 400;
/// A function with more lines must be split.
const FUNCTION_LINES_MAX: usize = 70;

/// Applies the rules to one Rust file.
pub(super) fn check(name: &str, content: &str) -> Vec<Finding> {
    let lines: Vec<&str> = content.lines().collect();
    let mut findings = Vec::new();
    if lines.len() > FILE_LINES_MAX {
        findings.push(Finding::failure(
            name,
            None,
            format!("{} lines; split it (at most {FILE_LINES_MAX})", lines.len()),
        ));
    } else if lines.len() > FILE_LINES_NOTED {
        findings.push(Finding::note(name, None, format!("{} lines", lines.len())));
    }
    if is_module(name) && !lines.first().is_some_and(|line| line.starts_with("//!")) {
        findings.push(Finding::failure(
            name,
            Some(1),
            "a module opens with a comment: its purpose, flow and invariants".to_owned(),
        ));
    }
    for (start, length) in functions(&lines) {
        if length > FUNCTION_LINES_MAX {
            findings.push(Finding::failure(
                name,
                Some(start + 1),
                format!("function of {length} lines (at most {FUNCTION_LINES_MAX})"),
            ));
        }
    }
    findings
}

/// Whether the file is a module of a crate's sources, tests and examples left out.
fn is_module(name: &str) -> bool {
    name.contains("src/") && !name.ends_with("tests.rs") && !name.ends_with("build.rs")
}

/// First line (from 0) and length in lines of each function.
fn functions(lines: &[&str]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        if !is_function_start(code) || code.ends_with(';') || code.ends_with('}') {
            continue;
        }
        let indent = line.len() - code.len();
        let closing = format!("{}}}", " ".repeat(indent));
        let rest = lines.iter().skip(start + 1);
        // A declaration without a body ends at a line of the same indentation that is no brace.
        for (offset, next) in rest.enumerate() {
            if *next == closing {
                found.push((start, offset + 2));
                break;
            }
            let next_indent = next.len() - next.trim_start().len();
            let is_same_depth = !next.is_empty() && next_indent <= indent;
            if is_same_depth && !next.trim_start().starts_with([')', '{', 'w', '}', '#']) {
                break;
            }
        }
    }
    found
}

/// Whether a line, stripped of its indentation, begins a function.
fn is_function_start(code: &str) -> bool {
    let mut words = code.split(' ').peekable();
    while let Some(word) = words.next() {
        match word {
            "fn" => return words.peek().is_some(),
            "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"" => {}
            _ if word.starts_with("pub(") => {}
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(lines: usize) -> String {
        format!("//! M.\n\npub(crate) fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn functions_are_measured() {
        let long = function_of(FUNCTION_LINES_MAX + 1);
        let findings = check("crates/x/src/a.rs", &long);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, Some(3));
        assert!(check("crates/x/src/a.rs", &function_of(FUNCTION_LINES_MAX)).is_empty());
    }

    #[test]
    fn signatures_over_several_lines_and_nested_functions_are_measured() {
        let text = "impl A {\n    fn f(\n        a: u8,\n    ) -> u8 {\n        fn g() {\n        }\n        a\n    }\n}\n";
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(functions(&lines), [(1, 7), (4, 2)]);
    }

    #[test]
    fn declarations_in_traits_have_no_length() {
        let text = "trait T {\n    fn f(\n        &self,\n    ) -> u8;\n\n    /// Doc.\n    fn g(&self) {\n    }\n}\n";
        let lines: Vec<&str> = text.lines().collect();
        assert!(functions(&lines).iter().all(|(_, length)| *length == 2));
    }

    #[test]
    fn modules_need_an_opening_comment() {
        assert_eq!(check("crates/x/src/a.rs", "use std::fs;\n").len(), 1);
        assert!(check("crates/x/src/a.rs", "//! Files.\n").is_empty());
        assert!(check("crates/x/tests/it/a.rs", "use std::fs;\n").is_empty());
    }

    #[test]
    fn long_files_are_noted_and_longer_ones_fail() {
        let noted = check("crates/x/src/a.rs", &"//! x\n".repeat(FILE_LINES_NOTED + 1));
        assert!(noted.len() == 1 && !noted[0].fails);
        let failed = check("crates/x/src/a.rs", &"//! x\n".repeat(FILE_LINES_MAX + 1));
        assert!(failed.len() == 1 && failed[0].fails);
    }
}
