//! The process's log: messages go to the terminal of a mount in the foreground, or to the file `varve.log` of a store that is mounted in
//! the background.
//!
//! The file is bounded: once it is larger than [`LOG_BYTES_MAX`] it becomes `varve.log.old` and replaces the one before.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use log::{LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use varve::{Error, Result};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_types::Timestamp;

/// Name of the log within a store.
pub const LOG_NAME: &str = "varve.log";

/// The size in bytes at which a log file is renamed.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// The one logger of the process.
static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Sends each message to its target.
struct Logger {
    target: Target,
}

enum Target {
    Stderr,
    File(Mutex<LogFile>),
}

/// Sends messages of `level` and worse to the standard error output.
pub fn to_stderr(level: LevelFilter) {
    install(Target::Stderr, level);
}

/// Sends messages of `level` and worse to the log of the store in `dir`.
pub fn to_store(dir: &Path, level: LevelFilter) -> Result<()> {
    let file = LogFile::open(dir)?;
    install(Target::File(Mutex::new(file)), level);
    Ok(())
}

fn install(target: Target, level: LevelFilter) {
    // Fails only if there is a logger already: then that one stays.
    if log::set_logger(LOGGER.get_or_init(|| Logger { target })).is_ok() {
        log::set_max_level(level);
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        // A message that cannot be written has nowhere else to go.
        match &self.target {
            Target::Stderr => drop(writeln!(std::io::stderr(), "varve: {}", record.args())),
            Target::File(file) => {
                let time = utc(OsEnv::new().now());
                let level = record.level().as_str().to_ascii_lowercase();
                drop(file.lock().append(&format!("{time} {level} {}\n", record.args())));
            }
        }
    }

    fn flush(&self) {}
}

/// An open log file.
struct LogFile {
    /// The directory of the store, also if its path has changed.
    env: Arc<OsEnv>,
    dir: PathBuf,
    file: File,
    bytes: u64,
}

/// Opens the log of the store in `dir` to append to.
pub(crate) fn open_log(dir: &Path) -> std::io::Result<File> {
    open_in(&OsEnv::new(), dir)
}

fn open_in(env: &OsEnv, dir: &Path) -> std::io::Result<File> {
    env.confine(dir)?;
    Ok(env.open_to_append(&dir.join(LOG_NAME))?.into())
}

impl LogFile {
    fn open(dir: &Path) -> Result<LogFile> {
        let env = OsEnv::new();
        let failed = |error| Error::io("open the log", &dir.join(LOG_NAME), &error);
        let file = open_in(&env, dir).map_err(failed)?;
        let bytes = file.metadata().map_or(0, |stat| stat.len());
        Ok(LogFile { env, dir: dir.to_path_buf(), file, bytes })
    }

    fn append(&mut self, line: &str) -> std::io::Result<()> {
        if self.bytes > LOG_BYTES_MAX {
            let path = self.dir.join(LOG_NAME);
            self.env.rename(&path, &path.with_extension("log.old"))?;
            self.file = open_in(&self.env, &self.dir)?;
            self.bytes = 0;
        }
        self.file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

/// A time as `2026-11-20T13:05:09Z`.
pub fn utc(time: Timestamp) -> String {
    let seconds = time.secs();
    let (days, in_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to date in the proleptic Gregorian calendar, in eras of 400 years that begin on 1 March
    // (Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days).
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        in_day / 3600,
        in_day / 60 % 60,
        in_day % 60
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(Timestamp::new(seconds, 0).unwrap()), text);
        }
    }

    #[test]
    fn a_log_file_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogFile::open(dir.path()).unwrap();
        let line = "x".repeat(100_000);
        for _ in 0..100 {
            log.append(&line).unwrap();
        }
        let length = |name: &str| fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(length(LOG_NAME) <= LOG_BYTES_MAX + 100_000);
        assert!(length("varve.log.old") <= LOG_BYTES_MAX + 100_000);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    /// The log was renamed by the path of the store, which the owner of a directory above could make lead elsewhere.
    #[test]
    fn a_log_is_set_aside_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for store in ["above/store", "elsewhere/store"] {
            fs::create_dir_all(at(store)).unwrap();
        }
        let mut log = LogFile::open(&at("above/store")).unwrap();
        fs::write(at("elsewhere/store/varve.log"), "precious").unwrap();
        fs::rename(at("above"), at("moved")).unwrap();
        symlink("elsewhere", at("above")).unwrap();
        let line = "x".repeat(100_000);
        (0..50).for_each(|_| log.append(&line).unwrap());
        assert!(fs::read(at("elsewhere/store/varve.log")).unwrap() == b"precious");
        assert!(!at("elsewhere/store/varve.log.old").exists());
        assert!(at("moved/store/varve.log.old").exists());
    }
}
