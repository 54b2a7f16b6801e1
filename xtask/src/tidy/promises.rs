//! Each point of docs/semantics.md names the test that holds it, and each of those tests stands there.

use std::collections::BTreeSet;

use super::Finding;

const PAGE: &str = "docs/semantics.md";
const TESTS: &str = "crates/varve-cli/tests/it/semantics/";

/// What the page and the tests name.
#[derive(Default)]
pub(super) struct Promises {
    /// Test names on the page, with their lines.
    on_page: Vec<(String, usize)>,
    /// Tests, with their files.
    tested: BTreeSet<(String, String)>,
}

impl Promises {
    /// Takes in one file.
    pub(super) fn read(&mut self, name: &str, content: &str) {
        if name == PAGE {
            for (at, line) in content.lines().enumerate() {
                self.on_page.extend(marks(line).map(|mark| (mark.to_owned(), at + 1)));
            }
        } else if name.starts_with(TESTS) {
            // Those that are tried in several places, and those that stand for themselves.
            let before = std::iter::once("").chain(content.lines());
            let tests = before.zip(content.lines()).filter_map(|(before, line)| {
                let begun = line.strip_prefix("fn ")?;
                let alone = begun.strip_suffix("() {").filter(|_| before == "#[test]");
                alone.or_else(|| begun.strip_suffix("(place: &Place) {"))
            });
            self.tested.extend(tests.map(|test| (test.to_owned(), name.to_owned())));
        }
    }

    /// Points without a test and tests without a point.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let untested = self
            .on_page
            .iter()
            .filter(|(mark, _)| !self.tested.iter().any(|(test, _)| test == mark));
        let unsaid = self
            .tested
            .iter()
            .filter(|(test, _)| !self.on_page.iter().any(|(mark, _)| mark == test));
        untested
            .map(|(mark, line)| {
                Finding::failure(PAGE, Some(*line), format!("there is no test `{mark}` in {TESTS}"))
            })
            .chain(unsaid.map(|(test, file)| {
                Finding::failure(file, None, format!("`{test}` holds no point of {PAGE}"))
            }))
            .collect()
    }
}

/// The names in `[name]` marks of a line.
fn marks(line: &str) -> impl Iterator<Item = &str> {
    line.split("`[").skip(1).filter_map(|rest| rest.split_once("]`")).map(|(mark, _)| mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(page: &str, tests: &str) -> Vec<String> {
        let mut promises = Promises::default();
        promises.read(PAGE, page);
        promises.read(&format!("{TESTS}files.rs"), tests);
        promises.findings().into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn points_and_tests_must_match() {
        let tests = "fn a(place: &Place) {\n}\nfn helper(x: u8) {\n}\n";
        assert_eq!(findings("- A. `[a]`\n", tests), Vec::<String>::new());
        assert_eq!(findings("- A. `[a]` `[b]`\n", tests).len(), 1);
        assert_eq!(findings("- Nothing.\n", tests).len(), 1);
        let alone = "#[test]\nfn a() {\n}\nfn helper() {\n}\n";
        assert_eq!(findings("- A. `[a]`\n", alone), Vec::<String>::new());
        assert_eq!(findings("- A. `[helper]`\n", alone).len(), 2);
    }
}
