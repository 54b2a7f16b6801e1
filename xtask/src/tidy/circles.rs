//! No large circle of files that import each other within a crate.
//!
//! 1. [`Circles::read`] takes in the sources of the crates: each file is a module.
//! 2. A path that begins with `crate` or `super` leads to the file that defines what it names; where a module only passes
//!    a name on (`pub use`), it leads further. Paths of tests do not count.
//! 3. Files that reach each other by such paths are a circle: none of them can be read before the others.
//!
//! A circle has at most [`FILES_MAX`] files.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::imports::{Imports, Path};

/// The most files of a circle.
const FILES_MAX: usize = 5;

/// How often a name may be passed on before it counts as defined where the search has come to.
const PASSED_ON_MAX: u32 = 8;

/// The modules of one crate, by their paths from its root.
type Modules = BTreeMap<Path, Module>;

struct Module {
    file: String,
    imports: Imports,
}

/// The files of all crates.
#[derive(Default)]
pub(super) struct Circles {
    crates: BTreeMap<String, Modules>,
}

impl Circles {
    /// Takes in one file.
    pub(super) fn read(&mut self, name: &str, content: &str) {
        let Some((dir, file)) = name.split_once("/src/") else { return };
        let Some(path) = module_path(file) else { return };
        let krate = dir.rsplit('/').next().unwrap_or(dir);
        // The workspaces that stand apart have no crates below `crates`.
        if !dir.starts_with("crates/") && dir != "xtask" {
            return;
        }
        let mut imports = Imports::of(content);
        let modules = self.crates.entry(krate.to_owned()).or_default();
        // The root of a program beside a library: what is imported from it is looked for in both.
        if let Some(other) = modules.remove(&path) {
            imports.used.extend(other.imports.used);
            imports.names.extend(other.imports.names);
            imports.test_modules.extend(other.imports.test_modules);
        }
        modules.insert(path, Module { file: file.to_owned(), imports });
    }

    /// Circles that are too large.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let too_large = |(krate, modules): (&String, &Modules)| {
            let circle = largest_circle(modules);
            let (count, files) = (circle.len(), circle.join(" "));
            let what = format!(
                "{count} files import each other in a circle (at most {FILES_MAX}): {files}"
            );
            (count > FILES_MAX).then(|| Finding::failure(krate, None, what))
        };
        self.crates.iter().filter_map(too_large).collect()
    }
}

/// The path of the module that a file below `src` is; none for a program of its own.
fn module_path(file: &str) -> Option<Path> {
    let mut path: Path = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if path[0] == "bin" {
        return None;
    }
    if path.len() == 1 && (path[0] == "lib" || path[0] == "main") || path.last()? == "mod" {
        path.pop();
    }
    Some(path)
}

/// The files of the largest circle; at most one file if there is none.
fn largest_circle(modules: &Modules) -> Vec<&str> {
    let for_tests: Vec<Path> = modules
        .iter()
        .flat_map(|(path, module)| module.imports.test_modules.iter().map(|name| below(path, name)))
        .collect();
    let is_for_tests = |path: &Path| for_tests.iter().any(|tests| path.starts_with(tests));
    let mut reached: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    let imported: BTreeMap<&Path, BTreeSet<&Path>> = modules
        .iter()
        .filter(|(path, _)| !is_for_tests(path))
        .map(|(path, module)| {
            let used = module.imports.used.iter();
            (path, used.filter_map(|used| defined_in(modules, path, used, 0)).collect())
        })
        .collect();
    for path in imported.keys().copied() {
        let found = reached.entry(path).or_default();
        let mut pending = vec![path];
        while let Some(next) = pending.pop() {
            let further = imported.get(next).into_iter().flatten().copied();
            pending.extend(further.filter(|further| found.insert(further)));
        }
    }
    let circle = |path: &Path| {
        let others = reached[path].iter().copied();
        let both =
            others.filter(|other| reached.get(other).is_some_and(|back| back.contains(path)));
        both.collect::<Vec<_>>()
    };
    let largest = imported.keys().map(|path| circle(path)).max_by_key(Vec::len);
    largest.unwrap_or_default().into_iter().map(|path| modules[path].file.as_str()).collect()
}

fn below(path: &Path, name: &str) -> Path {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

/// The module that defines what `used` names in the module `from`; none if that is no module of the crate.
fn defined_in<'a>(
    modules: &'a Modules,
    from: &Path,
    used: &[String],
    passed_on: u32,
) -> Option<&'a Path> {
    let (mut at, mut rest) = (from.clone(), used);
    while let Some((first, after)) = rest.split_first() {
        match first.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            _ => break,
        }
        rest = after;
    }
    while let Some((name, after)) = rest.split_first() {
        let child = below(&at, name);
        if modules.contains_key(&child) {
            (at, rest) = (child, after);
            continue;
        }
        let names = modules.get(&at).map(|module| &module.imports.names);
        if let Some(path) = names.and_then(|names| names.get(name))
            && passed_on < PASSED_ON_MAX
        {
            let path: Path = path.iter().chain(after).cloned().collect();
            let is_within = matches!(path[0].as_str(), "crate" | "super" | "self");
            if is_within || modules.contains_key(&below(&at, &path[0])) {
                return defined_in(modules, &at, &path, passed_on + 1);
            }
        }
        break;
    }
    modules.get_key_value(&at).map(|(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Circles {
        let mut circles = Circles::default();
        for (file, content) in files {
            circles.read(&format!("crates/x/src/{file}"), content);
        }
        circles
    }

    fn largest(files: &[(&str, &str)]) -> Vec<String> {
        let circles = circles(files);
        largest_circle(&circles.crates["x"]).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn files_that_reach_each_other_are_a_circle() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b/mod.rs", "mod d;\nuse crate::c;\n"),
            ("b/d.rs", "use super::super::a::A;\nuse super::B;\n"),
            ("c.rs", "fn e() { crate::b::d::F }\n"),
            ("g.rs", "use crate::A;\n"),
            ("h.rs", "use crate::g::G;\n"),
        ];
        assert_eq!(largest(&files), ["a.rs", "b/mod.rs", "b/d.rs", "c.rs"]);
    }

    #[test]
    fn a_name_that_is_passed_on_leads_to_the_file_that_defines_it() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::{A, c};\npub use serde::D;\n"),
            ("a/mod.rs", "mod c;\nuse crate::b::B;\npub use c::C as E;\n"),
            ("a/c.rs", "use crate::D;\n"),
            ("b.rs", "use crate::A;\n"),
        ];
        assert_eq!(largest(&files), ["a/mod.rs", "b.rs"]);
        let through =
            [files[0], files[1], ("a/c.rs", "use crate::b::B;\n"), ("b.rs", "use crate::a::E;\n")];
        assert_eq!(largest(&through), ["a/c.rs", "b.rs"]);
    }

    #[test]
    fn tests_are_in_no_circle() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod tests;\n"),
            ("a.rs", "use crate::b::B;\n#[cfg(test)]\nmod tests { use crate::tests::C; }\n"),
            ("b.rs", "#[cfg(test)]\nuse crate::a::A;\n"),
            ("tests.rs", "use crate::a::A;\n"),
        ];
        assert!(largest(&files).len() <= 1);
    }

    #[test]
    fn a_circle_of_more_files_is_a_failure() {
        let content = |others: usize| {
            (0..others)
                .map(|other| format!("fn f() {{ crate::m{other}::f() }}\n"))
                .collect::<String>()
        };
        let what = |count: usize| {
            let mut circles = Circles::default();
            for at in 0..count {
                circles.read(&format!("crates/x/src/m{at}.rs"), &content(count));
            }
            let found = circles.findings().into_iter();
            found.map(|finding| (finding.fails, finding.what)).collect::<Vec<_>>()
        };
        assert_eq!(what(FILES_MAX), []);
        let larger = FILES_MAX + 1;
        assert!(matches!(&what(larger)[..], [(true, what)] if what.contains("m0.rs m1.rs")));
    }
}
