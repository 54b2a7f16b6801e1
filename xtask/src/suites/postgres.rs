//! PostgreSQL: initdb, then pgbench with the server killed in the middle, and with the daemon killed.
//!
//! After each kill the server recovers and must hold every transaction that pgbench had seen committed, and
//! be consistent: pgbench moves the same amount in three tables and writes it to a fourth, so that the four
//! sums are equal. At the end the server stops in order and every page's checksum is verified.

use std::fs::File;
use std::time::Duration;

use super::postgres_server::Server;
use super::{Effort, Ground, Tally, tools};
use crate::machine;
use crate::run::{Failure, Outcome};

/// Whom to kill.
#[derive(Clone, Copy)]
enum Victim {
    Server,
    Daemon,
}

/// Runs all parts.
pub(super) fn run(ground: &mut Ground, effort: &mut Effort, tally: &mut Tally) -> Outcome {
    if !machine::may_switch_users() {
        tally.not_run("PostgreSQL runs as another user, which takes root".to_owned());
        return Ok(());
    }
    let data = ground.dir().join("postgres");
    let Some(mut server) = Server::find(ground, data)? else {
        tally.not_run(tools::missing("PostgreSQL's server"));
        return Ok(());
    };
    tally.case("initdb", server.initdb());
    server.start()?;
    tally.case(
        "pgbench --initialize",
        server.program("pgbench").args(["-i", "-q", "-s", "2"]).quiet(),
    );
    let mut committed = 0;
    loop {
        let seed = effort.seed();
        for (victim, what) in [(Victim::Server, "server"), (Victim::Daemon, "daemon")] {
            let outcome = kill_in_pgbench(ground, &mut server, effort, victim);
            let outcome = outcome.map(|transactions| committed += transactions);
            tally.case(&format!("{what} killed, seed {seed}"), outcome);
        }
        if !effort.next_round() {
            break;
        }
    }
    tally.case("stop", server.stop());
    tally.case("checksums of all pages", server.check_pages());
    tally.note(format!("{committed} transactions committed before kills, none lost"));
    Ok(())
}

/// Returns how many transactions pgbench saw committed.
fn kill_in_pgbench(
    ground: &mut Ground,
    server: &mut Server,
    effort: &Effort,
    victim: Victim,
) -> Result<u64, Failure> {
    let before = consistent_rows(server)?;
    let said = ground.outside("postgres")?.join("pgbench.out");
    let mut pgbench = server
        .program("pgbench")
        .args(["-n", "-c", "4", "-j", "2", "-T", "600"])
        .arg(format!("--random-seed={}", effort.seed()))
        .start(File::create(&said)?)?;
    let seconds = if effort.is_long() { 10 } else { 3 };
    std::thread::sleep(Duration::from_millis(seconds * 1000 + effort.seed() * 131 % 1000));
    let ended = pgbench.try_wait()?;
    if matches!(victim, Victim::Daemon) {
        ground.kill()?;
    }
    server.kill()?;
    pgbench.wait()?;
    if matches!(victim, Victim::Daemon) {
        ground.recover()?;
    }
    let said = std::fs::read_to_string(&said)?;
    if let Some(status) = ended {
        return Err(format!("pgbench ended before the kill: {status}\n{said}").into());
    }
    let told = said
        .lines()
        .find_map(|line| line.strip_prefix("number of transactions actually processed: "))
        .and_then(|count| count.split('/').next()?.trim().parse::<u64>().ok())
        .filter(|told| *told > 0)
        .ok_or_else(|| format!("pgbench counts nothing: {said}"))?;
    server.start()?;
    let after = consistent_rows(server)?;
    if after < before + told {
        return Err(format!("{before} and {told} transactions committed, {after} there").into());
    }
    Ok(told)
}

/// The number of transactions in the history, after comparing the sums.
fn consistent_rows(server: &Server) -> Result<u64, Failure> {
    let answer = server.query(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), \
         (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history), \
         (SELECT count(*) FROM pgbench_history)",
    )?;
    let columns: Vec<&str> = answer.trim().split('|').collect();
    match columns.as_slice() {
        [accounts, tellers, branches, history, rows]
            if accounts == tellers && tellers == branches && branches == history =>
        {
            Ok(rows.parse()?)
        }
        _ => Err(format!("the four sums differ: {answer}").into()),
    }
}
