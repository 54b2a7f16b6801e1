//! Text that must not be in the repository: unfinished work, paths of one machine, package sources other
//! than the public one.

use super::Finding;

/// How the only source of packages is called at its end, whatever way leads to it.
const PUBLIC_INDEX: &str = "crates.io-index";

/// Words that mark unfinished work. Put together here so that this file does not break its own rule.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
];

/// Path prefixes that exist on one machine only.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// Keys of Cargo's configuration that point at another source of packages.
const OTHER_SOURCES: &[&str] = &[
    concat!("[sour", "ce."),
    concat!("[regis", "tries"),
    concat!("regis", "try ="),
    concat!("replace", "-with"),
];

/// Applies the rules to one text file.
pub(super) fn check(name: &str, content: &str) -> Vec<Finding> {
    let is_cargo_file = name.ends_with(".toml") || name.ends_with("Cargo.lock");
    let mut findings = Vec::new();
    for (at, line) in content.lines().enumerate() {
        let mut fail = |what: String| findings.push(Finding::failure(name, Some(at + 1), what));
        let is_comment = line.trim_start().starts_with("//");
        // A call in a comment is part of an example.
        let words = UNFINISHED.iter().filter(|word| !(is_comment && word.ends_with('(')));
        for word in words.filter(|word| has_word(line, word)) {
            fail(format!("`{word}`: finish it or open an issue"));
        }
        for path in MACHINE_PATHS.iter().filter(|path| has_path(line, path)) {
            fail(format!("`{path}` is a path of one machine"));
        }
        if is_cargo_file {
            for key in OTHER_SOURCES.iter().filter(|key| line.contains(**key)) {
                fail(format!("`{key}`: packages come from crates.io"));
            }
            let source = line.strip_prefix("source = ").map(|source| source.trim_matches('"'));
            if let Some(source) = source.filter(|source| !is_public(source)) {
                fail(format!("package source {source}: packages come from crates.io"));
            }
        }
    }
    findings
}

fn is_public(source: &str) -> bool {
    source.starts_with("registry+https://") && source.rsplit('/').next() == Some(PUBLIC_INDEX)
}

/// Whether `word` stands in `line` and is not a part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !is_letter(before) && (word.ends_with('(') || !is_letter(after))
    })
}

/// Whether `line` holds an absolute path that begins with `path`.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | '}'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(name: &str, content: &str) -> Vec<Option<usize>> {
        check(name, content).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unfinished_work_is_found() {
        let marked = format!("fn f() {{}}\n// {}: later\n", UNFINISHED[0]);
        assert_eq!(lines("a.rs", &marked), [Some(2)]);
        assert_eq!(lines("a.rs", &format!("    {})\n", UNFINISHED[2])), [Some(1)]);
        assert!(lines("a.rs", &format!("/// {})\n", UNFINISHED[3])).is_empty());
        assert!(lines("a.rs", &format!("MASTER_{}\n", UNFINISHED[0])).is_empty());
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        assert_eq!(lines("a.md", &format!("see {}main\n", MACHINE_PATHS[0])), [Some(1)]);
        assert!(lines("a.md", &format!("target{}x\n", MACHINE_PATHS[0])).is_empty());
    }

    #[test]
    fn packages_come_from_the_public_registry() {
        let public = format!("source = \"registry+https://example.org/{PUBLIC_INDEX}\"\n");
        assert!(lines("Cargo.lock", &public).is_empty());
        assert_eq!(
            lines("Cargo.lock", "source = \"registry+https://mirror.example/x\"\n"),
            [Some(1)]
        );
        assert_eq!(
            lines(".cargo/config.toml", &format!("{}mirror]\n", OTHER_SOURCES[0])),
            [Some(1)]
        );
    }
}
