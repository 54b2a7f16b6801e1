//! The output of the program, for people and for programs.

use std::io::{ErrorKind, IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use varve::{Error, Result, check};
use varve_engine::paths::ReadPaths;

/// How often a progress line changes.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Characters of a whole bar.
const BAR_CELLS: usize = 30;

/// The first failure to write to the standard output, after which nothing more is written there.
static FAILURE: OnceLock<std::io::Error> = OnceLock::new();

/// Writes to the standard output. [`is_wanted`] says whether that works still, and [`outcome`] in the end whether it worked.
pub(crate) fn bytes(bytes: &[u8]) {
    if is_wanted() {
        let mut out = std::io::stdout().lock();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        let _ = written.map_err(|error| FAILURE.set(error));
    }
}

/// Writes a line to the standard output, like [`bytes`].
pub(crate) fn line(text: impl AsRef<[u8]>) {
    bytes(&[text.as_ref(), b"\n"].concat());
}

/// False once further output would reach no reader.
pub(crate) fn is_wanted() -> bool {
    FAILURE.get().is_none()
}

/// Whether all output was written. A reader that has closed the pipe (`varve ... | head`) has what it wanted.
pub(crate) fn outcome() -> Result<()> {
    match FAILURE.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            let text = format!("cannot write to the standard output: {error}");
            Err(Error::failed(text)
                .hint("make room for the output; the command itself has done its changes"))
        }
        _ => Ok(()),
    }
}

/// The bytes of a path in an answer, unchanged, so that a program that reads them finds it; `-` for none.
pub(crate) fn place(told: &Value) -> Vec<u8> {
    PathBuf::read(told).map_or_else(|| b"-".into(), |path| path.into_os_string().into_vec())
}

/// A path, quoted for a shell.
pub(crate) fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+:,@%".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Writes `value` as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::failed(format!("cannot write JSON: {error}")))?;
    line(text);
    Ok(())
}

/// Writes the name of each view, which stands under `key`, and its path: a line each, or all of `views` as JSON.
pub(crate) fn places(views: &Value, key: &str, as_json: bool) -> Result<()> {
    if as_json {
        return json(views);
    }
    for view in views.as_array().into_iter().flatten() {
        let name = view[key].as_str().unwrap_or_default().as_bytes();
        line([name, b"  ", &place(&view["path"])].concat());
    }
    Ok(())
}

/// Writes a failure and its hint to the standard error output.
pub(crate) fn error(error: &Error) {
    drop(writeln!(std::io::stderr(), "varve: {error}"));
}

/// Writes a note about something that succeeded to the standard error output.
pub(crate) fn note(text: &str) {
    drop(writeln!(std::io::stderr(), "varve: note: {text}"));
}

/// Whether a person at a terminal can answer a question.
pub(crate) fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks a question that `y` answers with yes, on the terminal.
pub(crate) fn ask(question: &str) -> bool {
    let mut stderr = std::io::stderr();
    drop(write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// A line on a terminal that shows the progress of long work; writes nothing if the output is no terminal.
pub(crate) struct Progress {
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    /// Nothing shown yet.
    pub(crate) fn new() -> Progress {
        Progress { shown: None, is_terminal: std::io::stderr().is_terminal() }
    }

    /// Replaces the line by a bar for `permille` thousandths, if they are known, and `text`.
    pub(crate) fn bar(&mut self, permille: Option<u16>, text: &str) {
        match permille {
            Some(permille) => {
                let filled = usize::from(permille.min(1000)) * BAR_CELLS / 1000;
                let bar = "#".repeat(filled) + &"-".repeat(BAR_CELLS - filled);
                self.show(&format!("[{bar}] {:>3}%  {text}", permille / 10));
            }
            None => self.show(text),
        }
    }

    /// Replaces the line, at most as often as a person can read.
    pub(crate) fn show(&mut self, text: &str) {
        if self.is_terminal && self.shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_EVERY) {
            self.shown = Some(Instant::now());
            let mut stderr = std::io::stderr();
            drop(write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush()));
        }
    }
}

/// Does `work` and shows its progress on a terminal: `verb`, the phase, and the count.
pub(crate) fn watched<T>(
    verb: impl Fn(&check::Progress) -> &'static str,
    work: impl FnOnce(&mut dyn FnMut(check::Progress)) -> T,
) -> T {
    let mut line = Progress::new();
    work(&mut |at| line.bar(at.permille, &format!("{} {}: {}", verb(&at), at.phase, at.done)))
}

impl Progress {
    /// Removes the line, before other output.
    pub(crate) fn clear(&mut self) {
        if self.shown.take().is_some() {
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Prints the changes of paths: A added, D removed, M changed, R renamed.
pub(crate) fn changes(told: &Value, as_json: bool) -> Result<()> {
    if as_json {
        return json(told);
    }
    for change in told["changes"].as_array().into_iter().flatten() {
        let path = printable_path(&change["path"]);
        line(match change["change"].as_str() {
            Some("added") => [b"A  ", &path[..]].concat(),
            Some("removed") => [b"D  ", &path[..]].concat(),
            Some("renamed") => {
                [b"R  ", &printable_path(&change["from"])[..], b" -> ", &path].concat()
            }
            _ => [b"M  ", &path[..]].concat(),
        });
    }
    if told["complete"] == false {
        line("and more");
    }
    Ok(())
}

/// A text on one line, with control characters escaped.
pub(crate) fn printable(text: &Value) -> String {
    on_one_line(text.as_str().unwrap_or_default())
}

/// Like [`place`], on one line, with control characters escaped.
pub(crate) fn printable_path(told: &Value) -> Vec<u8> {
    place(told).utf8_chunks().fold(Vec::new(), |mut line, chunk| {
        line.extend_from_slice(on_one_line(chunk.valid()).as_bytes());
        line.extend_from_slice(chunk.invalid());
        line
    })
}

/// A text with control characters escaped.
pub(crate) fn on_one_line(text: &str) -> String {
    text.chars().fold(String::new(), |mut line, letter| {
        match letter.is_control() {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
        line
    })
}
