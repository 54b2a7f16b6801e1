//! What a suite found, as one line or as JSON.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::run::{Failure, Outcome};

/// How many failures of a suite are printed in full.
const PRINTED_FAILURES_MAX: usize = 20;

/// The cases of one suite.
pub(crate) struct Tally {
    suite: String,
    passed: u64,
    skipped: Vec<Case>,
    failed: Vec<Case>,
    notes: Vec<String>,
    not_run: Option<String>,
    time: Duration,
}

struct Case {
    name: String,
    why: String,
}

impl Tally {
    /// Nothing yet.
    pub(crate) fn new(suite: &str) -> Tally {
        Tally {
            suite: suite.to_owned(),
            passed: 0,
            skipped: Vec::new(),
            failed: Vec::new(),
            notes: Vec::new(),
            not_run: None,
            time: Duration::ZERO,
        }
    }

    /// Counts cases that passed.
    pub(crate) fn passed(&mut self, cases: u64) {
        self.passed += cases;
    }

    /// Notes a case that does not apply; named once however often it comes.
    pub(crate) fn skipped(&mut self, name: &str, why: &str) {
        if !self.skipped.iter().any(|case| case.name == name) {
            self.skipped.push(Case { name: name.to_owned(), why: why.to_owned() });
        }
    }

    /// Notes a case that failed.
    pub(crate) fn failed(&mut self, name: &str, why: &str) {
        self.failed.push(Case { name: name.to_owned(), why: why.to_owned() });
    }

    /// Runs cases beside each other, and counts each.
    pub(crate) fn cases_at_once<T: Sync>(
        &mut self,
        cases: &[T],
        name: impl Fn(&T) -> String,
        run: impl Fn(&T) -> Outcome + Sync,
    ) {
        let run = &run;
        let outcomes: Vec<Outcome> = thread::scope(|scope| {
            let running: Vec<_> = cases.iter().map(|case| scope.spawn(move || run(case))).collect();
            running.into_iter().map(|case| case.join().expect("no case panics")).collect()
        });
        for (case, outcome) in cases.iter().zip(outcomes) {
            self.case(&name(case), outcome);
        }
    }

    /// Counts a case by its outcome.
    pub(crate) fn case(&mut self, name: &str, outcome: Outcome) {
        match outcome {
            Ok(()) => self.passed(1),
            Err(error) => self.failed(name, &error.to_string()),
        }
    }

    /// Adds a figure to the line.
    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Says that the suite could not run on this machine.
    pub(crate) fn not_run(&mut self, why: String) {
        self.not_run = Some(why);
    }

    /// Whether the suite could run.
    pub(crate) fn has_run(&self) -> bool {
        self.not_run.is_none()
    }

    /// Whether a suite that could run tested nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.has_run() && self.passed == 0 && !self.has_failed()
    }

    /// Sets how long it took.
    pub(crate) fn took(&mut self, time: Duration) {
        self.time = time;
    }

    /// Whether a case failed.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Prints the line, each failure, and each skip with its reason.
    pub(crate) fn print(&self) {
        if let Some(why) = &self.not_run {
            println!("{:<10} NOT RUN: {why}", self.suite);
            return;
        }
        let cases = self.passed + self.failed.len() as u64 + self.skipped.len() as u64;
        let notes: String = self.notes.iter().map(|note| format!("; {note}")).collect();
        println!(
            "{:<10} {cases} cases: {} passed, {} failed, {} skipped, {:.1} s{notes}",
            self.suite,
            self.passed,
            self.failed.len(),
            self.skipped.len(),
            self.time.as_secs_f64(),
        );
        for case in &self.skipped {
            println!("    skipped {}: {}", case.name, case.why);
        }
        for case in self.failed.iter().take(PRINTED_FAILURES_MAX) {
            println!("    FAILED {}: {}", case.name, case.why.replace('\n', "\n        "));
        }
        if self.failed.len() > PRINTED_FAILURES_MAX {
            println!("    and {} more failures", self.failed.len() - PRINTED_FAILURES_MAX);
        }
    }

    fn json(&self) -> serde_json::Value {
        let cases = |cases: &[Case]| -> Vec<_> {
            cases.iter().map(|case| json!({ "case": case.name, "why": case.why })).collect()
        };
        json!({
            "suite": self.suite,
            "not_run": self.not_run,
            "passed": self.passed,
            "failed": cases(&self.failed),
            "skipped": cases(&self.skipped),
            "notes": self.notes,
            "seconds": self.time.as_secs_f64(),
        })
    }
}

/// Prints all of them as one JSON array.
pub(crate) fn print_json(tallies: &[Tally]) -> Outcome {
    let tallies: Vec<_> = tallies.iter().map(Tally::json).collect();
    println!("{}", serde_json::to_string_pretty(&tallies)?);
    Ok(())
}

/// Fails if a case of one of them failed.
pub(crate) fn verdict(tallies: &[Tally]) -> Outcome {
    let failed: Vec<_> = tallies
        .iter()
        .filter(|tally| tally.has_failed())
        .map(|tally| tally.suite.as_str())
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    let hint =
        "hint: run one with --plain to see whether the suite fails elsewhere, with --keep to look";
    Err(Failure::from(format!("suites failed: {}\n{hint}", failed.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_fails_the_run() {
        let mut tally = Tally::new("x");
        tally.case("a", Ok(()));
        tally.skipped("b", "not here");
        tally.skipped("b", "not here");
        assert_eq!(tally.skipped.len(), 1);
        assert!(verdict(std::slice::from_ref(&tally)).is_ok());
        tally.case("c", Err("broken".into()));
        let error = verdict(&[Tally::new("y"), tally]).unwrap_err().to_string();
        assert!(error.starts_with("suites failed: x\n"), "{error}");
    }
}
