//! SQLite: many small transactions from several processes, killed in the middle.
//!
//! 1. Two `sqlite3` processes run transactions on one database: every one must be there afterwards.
//! 2. A process writes on and says after each commit what it has committed; it, or the daemon below it, is
//!    killed with SIGKILL. The database must pass its integrity check, hold every commit that was told, and
//!    be at a moment between two transactions: the table `total` counts the rows of the table `row`.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Effort, Ground, Tally, tools};
use crate::run::{Failure, Outcome, Step};

/// Ways in which SQLite keeps a transaction whole.
const JOURNALS: &[&str] = &["DELETE", "TRUNCATE", "PERSIST", "WAL"];

/// Transactions of each of two processes in the first part.
const TRANSACTIONS: u64 = 60;

/// More transactions than can be done before the kill.
const TRANSACTIONS_UNTIL_KILLED: u64 = 50_000;

/// How long the first commit before the kill may take.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(60);

/// Whom to kill.
#[derive(Clone, Copy)]
enum Victim {
    Program,
    Daemon,
}

/// Runs all parts with every journal.
pub(super) fn run(ground: &mut Ground, effort: &mut Effort, tally: &mut Tally) -> Outcome {
    if tools::find("sqlite3").is_none() {
        tally.not_run(tools::missing("sqlite3"));
        return Ok(());
    }
    let mut told = 0;
    loop {
        for journal in JOURNALS {
            let seed = effort.seed();
            let case = |what: &str| format!("{journal}: {what}, seed {seed}");
            let outcome = two_processes(ground, journal, seed);
            tally.case(&case("two processes"), outcome);
            for (victim, what) in [(Victim::Program, "program"), (Victim::Daemon, "daemon")] {
                let outcome = killed(ground, journal, seed, victim);
                tally
                    .case(&case(&format!("{what} killed")), outcome.map(|commits| told += commits));
            }
        }
        if !effort.next_round() {
            break;
        }
    }
    tally.note(format!("{told} commits told before kills, none lost"));
    Ok(())
}

fn two_processes(ground: &Ground, journal: &str, seed: u64) -> Outcome {
    let database = ground.dir().join(format!("two-{journal}-{seed}.db"));
    create(&database, journal)?;
    let mut children = Vec::new();
    for process in 0..2 {
        let keys = process * TRANSACTIONS..(process + 1) * TRANSACTIONS;
        let output = File::create(ground.outside("sqlite")?.join(format!("two-{process}.out")))?;
        children.push(start(ground, &database, keys, output)?);
    }
    for mut child in children {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("sqlite3: {status}").into());
        }
    }
    check(&database, 2 * TRANSACTIONS)
}

/// Returns how many commits were told before the kill.
fn killed(ground: &mut Ground, journal: &str, seed: u64, victim: Victim) -> Result<u64, Failure> {
    let database = ground.dir().join(format!("killed-{journal}-{seed}-{}.db", victim as u8));
    create(&database, journal)?;
    let told = ground.outside("sqlite")?.join("told");
    let mut child = start(ground, &database, 0..TRANSACTIONS_UNTIL_KILLED, File::create(&told)?)?;
    // However slow the machine is, it commits before it is killed.
    let begin = Instant::now();
    while commits_in(&std::fs::read_to_string(&told)?) == 0 && begin.elapsed() < FIRST_WAIT_MAX {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(100 + seed * 137 % 400));
    if let Some(status) = child.try_wait()? {
        let told = std::fs::read_to_string(&told)?;
        return Err(format!("sqlite3 ended before the kill: {status}\n{told}").into());
    }
    if matches!(victim, Victim::Daemon) {
        ground.kill()?;
    }
    child.kill()?;
    child.wait()?;
    if matches!(victim, Victim::Daemon) {
        ground.recover()?;
    }
    let told = std::fs::read_to_string(&told)?;
    let commits = commits_in(&told);
    if commits == 0 {
        return Err(format!("not one commit before the kill: {told}").into());
    }
    check(&database, commits)?;
    Ok(commits)
}

/// How many commits are told in what was written so far; a line is whole when its newline is there.
fn commits_in(told: &str) -> u64 {
    let whole = told.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter(|line| line.parse::<u64>().is_ok()).count() as u64
}

fn create(database: &Path, journal: &str) -> Outcome {
    let script = format!(
        "PRAGMA journal_mode={journal};\nCREATE TABLE row(key INTEGER PRIMARY KEY, value TEXT);\n\
         CREATE INDEX by_value ON row(value);\nCREATE TABLE total(rows INTEGER);\n\
         INSERT INTO total VALUES(0);\n"
    );
    Step::new("sqlite3").arg("-bail").arg(database).input(script).quiet()
}

/// Starts a process that inserts `keys`, a transaction each, and says each key after its commit.
fn start(
    ground: &Ground,
    database: &Path,
    keys: std::ops::Range<u64>,
    output: File,
) -> Result<std::process::Child, Failure> {
    let mut script = String::from(".timeout 60000\n");
    let (first, last) = (keys.start, keys.end);
    for key in keys {
        let value = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        writeln!(script, "BEGIN IMMEDIATE; INSERT INTO row VALUES({key}, '{value:0200x}');")?;
        writeln!(script, "UPDATE total SET rows = rows + 1; COMMIT; SELECT {key};")?;
    }
    let file = ground.outside("sqlite")?.join(format!("{first}-{last}.sql"));
    std::fs::write(&file, script)?;
    Step::new("stdbuf")
        .args(["-oL", "sqlite3", "-bail"])
        .arg(database)
        .arg(format!(".read {}", file.display()))
        .start(output)
}

fn check(database: &Path, rows_min: u64) -> Outcome {
    let query = "PRAGMA integrity_check; SELECT count(*) FROM row; SELECT rows FROM total;";
    let answer = Step::new("sqlite3").arg(database).arg(query).capture()?;
    let lines: Vec<&str> = answer.lines().collect();
    let ["ok", rows, total] = lines.as_slice() else {
        return Err(format!("integrity check: {answer}").into());
    };
    if rows != total || rows.parse::<u64>()? < rows_min {
        return Err(format!("{rows_min} rows told, {rows} found, {total} counted").into());
    }
    Ok(())
}
