//! What a Rust file imports from other files of its crate.
//!
//! 1. [`tokens`] cuts the text into words and signs; comments, texts and lifetimes are left out.
//! 2. [`Imports::of`] walks over them and collects the paths that begin with `crate` or `super`, the names that `use` brings
//!    into the module, and the modules that only tests see. What is marked with `#[cfg(test)]` is passed over.
//!
//! The walk knows as much of Rust as rustfmt's output needs: it does not expand macros.

use std::collections::BTreeMap;

/// A path as it is written, segment by segment.
pub(super) type Path = Vec<String>;

/// What one file imports.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Imports {
    /// The paths that begin with `crate` or `super`.
    pub(super) used: Vec<Path>,
    /// The names that `use` brings into the module, each with the path that it stands for.
    pub(super) names: BTreeMap<String, Path>,
    /// The modules that are declared for tests alone.
    pub(super) test_modules: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    /// A sign, or `::`.
    Sign(&'a str),
}

use Token::{Sign, Word};

impl Imports {
    /// Reads the text of a file.
    pub(super) fn of(content: &str) -> Imports {
        let tokens = tokens(content);
        let mut walk =
            Walk { tokens: &tokens, at: 0, scopes: Vec::new(), found: Imports::default() };
        while walk.at < tokens.len() {
            walk.step();
        }
        walk.found
    }
}

struct Walk<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    /// The braces that are open: true for those of a module.
    scopes: Vec<bool>,
    found: Imports,
}

impl<'a> Walk<'a> {
    fn token(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + ahead).copied()
    }

    fn is_sign(&self, ahead: usize, sign: &str) -> bool {
        self.token(ahead) == Some(Sign(sign))
    }

    /// Takes one token, or an item that begins with it.
    fn step(&mut self) {
        match (self.token(0), self.token(1), self.token(2)) {
            (Some(Sign("#")), Some(Sign("[")), _) => self.attribute(),
            (Some(Word("mod")), Some(Word(_)), Some(Sign("{"))) => {
                self.scopes.push(true);
                self.at += 3;
            }
            (Some(Word("use")), Some(Word(_) | Sign("{" | "::")), _) => {
                self.at += 1;
                self.use_tree(&mut Vec::new());
            }
            (Some(Word("crate" | "super")), Some(Sign("::")), _) if !self.is_visibility() => {
                let mut path = Vec::new();
                while let Some(Word(word)) = self.token(0) {
                    path.push(word.to_owned());
                    self.at += 1;
                    if !self.is_sign(0, "::") {
                        break;
                    }
                    self.at += 1;
                }
                self.note_use(path);
            }
            (Some(Sign("{")), _, _) => {
                self.scopes.push(false);
                self.at += 1;
            }
            (Some(Sign("}")), _, _) => {
                self.scopes.pop();
                self.at += 1;
            }
            _ => self.at += 1,
        }
    }

    /// Whether the word here belongs to `pub(in crate::...)`, or goes on with a path.
    fn is_visibility(&self) -> bool {
        let before = self.at.checked_sub(1).map(|before| self.tokens[before]);
        matches!(before, Some(Word("in") | Sign("::")))
    }

    /// Passes over an attribute, and over the item behind it if that is for tests alone.
    fn attribute(&mut self) {
        let begin = self.at + 2;
        self.at += 1;
        self.skip_group();
        let words = &self.tokens[begin..self.at];
        let has = |word| words.contains(&Word(word));
        if words.first() != Some(&Word("cfg")) || !has("test") || has("not") {
            return;
        }
        while self.is_sign(0, "#") {
            self.at += 1;
            self.skip_group();
        }
        self.skip_item();
    }

    /// Passes over an item. It ends with `;`, or with its block.
    fn skip_item(&mut self) {
        let is_use = self.tokens[self.at..].iter().take(6).take_while(|token| **token != Sign("{"));
        let is_use = is_use.clone().any(|token| *token == Word("use"));
        while let Some(token) = self.token(0) {
            match token {
                Word("mod") => {
                    if let (Some(Word(name)), true) = (self.token(1), self.is_sign(2, ";")) {
                        self.found.test_modules.push(name.to_owned());
                    }
                    self.at += 1;
                }
                Sign(";") => {
                    self.at += 1;
                    return;
                }
                Sign("{") if !is_use => return self.skip_group(),
                Sign("(" | "[" | "{") => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    /// Passes over a group in brackets of any kind, which begins here.
    fn skip_group(&mut self) {
        let mut open = 0_usize;
        while let Some(token) = self.token(0) {
            self.at += 1;
            match token {
                Sign("(" | "[" | "{") => open += 1,
                Sign(")" | "]" | "}") => open = open.saturating_sub(1),
                _ => {}
            }
            if open == 0 {
                return;
            }
        }
    }

    /// Reads what follows `use`, or one part of it, below `prefix`.
    fn use_tree(&mut self, prefix: &mut Path) {
        let depth = prefix.len();
        loop {
            match self.token(0) {
                Some(Word(word)) => prefix.push(word.to_owned()),
                Some(Sign("*")) => prefix.push("*".to_owned()),
                Some(Sign("{")) => {
                    self.at += 1;
                    while self.token(0).is_some() && !self.is_sign(0, "}") {
                        self.use_tree(prefix);
                        if self.is_sign(0, ",") {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    break;
                }
                // A path from the root of all crates begins with it.
                Some(Sign("::")) => {
                    self.at += 1;
                    continue;
                }
                _ => break,
            }
            self.at += 1;
            if self.is_sign(0, "::") {
                self.at += 1;
                continue;
            }
            self.note_name(prefix.clone());
            break;
        }
        prefix.truncate(depth);
    }

    /// Notes a name that `use` brings in, as what it is called.
    fn note_name(&mut self, mut path: Path) {
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if let (Some(Word("as")), Some(Word(alias))) = (self.token(0), self.token(1)) {
            name = alias.to_owned();
            self.at += 2;
        }
        if !self.scopes.contains(&true) {
            self.found.names.insert(name, path.clone());
        }
        self.note_use(path);
    }

    /// Notes a path that leads out of this file.
    fn note_use(&mut self, mut path: Path) {
        if path.len() > 1 && path[0] == "self" && path[1] == "super" {
            path.remove(0);
        }
        if path.first().is_some_and(|first| first == "super") {
            // Within a module of this file `super` may be this file itself.
            for _ in 0..self.scopes.iter().filter(|is_module| **is_module).count() {
                if path.first().is_none_or(|first| first != "super") {
                    return;
                }
                path.remove(0);
            }
        }
        if path.first().is_some_and(|first| first == "super" || first == "crate") {
            self.found.used.push(path);
        }
    }
}

/// The words and signs of a text.
fn tokens(content: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = content;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = text(rest) {
            length
        } else if first == '\'' {
            letter_or_lifetime(rest)
        } else if first.is_alphanumeric() || first == '_' {
            let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
            let length = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
            tokens.push(Word(&rest[..length]));
            length
        } else if rest.starts_with("::") {
            tokens.push(Sign("::"));
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(Sign(&rest[..first.len_utf8()]));
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// The length of a block comment, with those within it.
fn block_comment(rest: &str) -> usize {
    let (mut open, mut at) = (0_usize, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (open, at) = (open + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (open, at) = (open - 1, at + 2);
            if open == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of a text in quotes, raw or not, if one begins here.
fn text(rest: &str) -> Option<usize> {
    let prefix = rest.find(|letter| !matches!(letter, 'b' | 'c' | 'r'))?;
    let is_raw = rest[..prefix].ends_with('r');
    let hashes = rest[prefix..].find(|letter| letter != '#')?;
    if prefix > 2 || !rest[prefix + hashes..].starts_with('"') || (hashes > 0 && !is_raw) {
        return None;
    }
    let begin = prefix + hashes + 1;
    if is_raw {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(rest[begin..].find(&end).map_or(rest.len(), |at| begin + at + end.len()));
    }
    let mut is_escaped = false;
    for (at, letter) in rest[begin..].char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some(begin + at + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// The length of a letter in quotes, or of a lifetime.
fn letter_or_lifetime(rest: &str) -> usize {
    let mut letters = rest.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => {
            // Behind the letter that is escaped, which may be the quote.
            letters.next();
            letters.find(|(_, letter)| *letter == '\'').map_or(rest.len(), |(at, _)| at + 1)
        }
        Some((at, letter)) if rest[at + letter.len_utf8()..].starts_with('\'') => {
            at + letter.len_utf8() + 1
        }
        Some(_) => {
            let name = rest[1..].find(|letter: char| !letter.is_alphanumeric() && letter != '_');
            name.map_or(rest.len(), |length| length + 1)
        }
        None => rest.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(content: &str) -> Vec<String> {
        Imports::of(content).used.iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn paths_of_the_crate_are_found_in_imports_and_in_code() {
        let content = "use std::fs;\nuse crate::a::{self, B, c::{D as E, f}};\npub(crate) use super::G;\n\
                       fn h(i: &crate::j::K) -> u8 { super::super::l(m::n()) }\n";
        let paths = [
            "crate::a",
            "crate::a::B",
            "crate::a::c::D",
            "crate::a::c::f",
            "super::G",
            "crate::j::K",
            "super::super::l",
        ];
        assert_eq!(used(content), paths);
        let names = Imports::of(content).names;
        assert_eq!(names["E"].join("::"), "crate::a::c::D");
        assert_eq!(names["a"].join("::"), "crate::a");
        assert_eq!(names["fs"].join("::"), "std::fs");
    }

    #[test]
    fn texts_comments_and_visibilities_are_no_imports() {
        let content = "// crate::a\n/* super::b /* crate::c */ */\nconst D: &str = \"crate::e\";\n\
                       const F: &[u8] = br#\"super::\"g\"#;\nconst H: [char; 2] = ['\"', '\\''];\n\
                       pub(in crate::i) fn j<'a>(k: &'a str) { crate::l(); }\n";
        assert_eq!(used(content), ["crate::l"]);
    }

    #[test]
    fn what_is_for_tests_alone_is_passed_over() {
        let content = "#[cfg(test)]\nmod a;\n#[cfg(all(test, unix))]\nuse crate::{b, c};\n#[cfg(test)]\n#[allow(x)]\n\
                       fn d(e: [u8; 2]) -> crate::F { crate::g() }\n#[cfg(not(test))]\nuse crate::h;\n\
                       #[cfg(test)]\nmod tests { use super::*; }\nuse super::i;\n";
        assert_eq!(used(content), ["crate::h", "super::i"]);
        assert_eq!(Imports::of(content).test_modules, ["a"]);
    }

    #[test]
    fn above_a_module_within_a_file_is_the_file() {
        assert_eq!(
            used("mod a { use super::B; use super::super::C; }\nuse super::D;\n"),
            ["super::C", "super::D"]
        );
    }
}
