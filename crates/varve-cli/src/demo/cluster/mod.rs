//! A demonstration of a store that a server serves to two mounts.
//!
//! 1. Format a store in a temporary directory, serve it, and mount it twice, each by a process as a person starts it ([`scene`]).
//! 2. Do the steps of the other demonstration ([`super::steps`]): one mount changes, the other looks at it.
//! 3. Let programs on both mounts work at once ([`work`]): one reads what the other makes, both change the same directories, and
//!    the same once more while the server is killed and started again.
//! 4. Compare what is there with what the programs were told was done, unmount, stop the server, check the store.
//! 5. Remove everything; also after a failure and on Ctrl-C.
//!
//! The requests of the server are those that `varve stats` counts.

mod scene;
mod show;
mod work;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use varve::{Error, Result};
use varve_daemon::stats::Stats;
use varve_daemon::status::bytes_below;

use super::place::{Directory, Timed, Times};
use super::{Plan, stage, steps};
use crate::output::Progress;
use scene::{Cluster, MOUNTS};
use work::{Done, KINDS, Shared};

/// For how long the server is away.
const AWAY: Duration = Duration::from_millis(300);
/// How long programs may take to go on when the server is back.
const BACK_MAX: Duration = Duration::from_secs(120);
/// How often the time of programs is looked at.
const TICK: Duration = Duration::from_millis(20);

/// How the demonstration goes.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    /// The size of the steps.
    pub(crate) plan: Plan,
    /// For how long programs work on both mounts at once, before the server is killed and then again.
    pub(crate) time: Duration,
    /// Where the temporary directory is made.
    pub(crate) parent: PathBuf,
    /// Keep the store and the messages of all processes.
    pub(crate) is_kept: bool,
}

/// The figures of one kind of work.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    step: &'static str,
    /// The mounts on which it was done.
    on: &'static str,
    operations: u64,
    bytes: u64,
    seconds: f64,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    /// Requests of the server, by kind; `None` where work of other rows is among them.
    requests: Option<BTreeMap<String, u64>>,
    requests_per_operation: Option<f64>,
}

/// Work of both mounts at once.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Together {
    seconds: f64,
    rows: Vec<Row>,
    /// Rounds of a program on each mount.
    rounds: [u64; 2],
    /// Names that each has claimed.
    claims: [u64; 2],
    /// Requests of the server, by kind; `None` if another server counts anew.
    requests: Option<BTreeMap<String, u64>>,
    requests_per_operation: Option<f64>,
}

/// What programs noticed of the death of the server.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Restart {
    /// From the death of the server until the next one answered.
    away_s: f64,
    /// From then on until the program on each mount had done all kinds of work again.
    back_s: [f64; 2],
    /// The longest call of all.
    longest_call_s: f64,
    work: Together,
}

/// What the demonstration measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    plan: Plan,
    address: SocketAddr,
    /// How the mounts were made.
    methods: [String; 2],
    /// One mount after the other.
    steps: Vec<Row>,
    /// One mount behind the other.
    follow: Vec<Row>,
    together: Together,
    restart: Restart,
    /// Files whose bytes were compared.
    files_compared: u64,
    /// Lines of logs that were compared.
    lines_compared: u64,
    store_bytes: u64,
    /// Where the store is kept.
    #[serde(with = "varve_engine::paths")]
    kept: Option<PathBuf>,
}

/// A demonstration that runs.
struct Demonstration<'a> {
    choices: &'a Choices,
    cluster: &'a Cluster,
    address: SocketAddr,
    roots: [PathBuf; 2],
    tell: &'a mut dyn FnMut(&str),
    progress: Mutex<Progress>,
}

/// Runs the demonstration; passes each line of output to `tell`.
pub(crate) fn run(choices: &Choices, tell: &mut dyn FnMut(&str)) -> Result<Figures> {
    let mut cluster = Cluster::new(&choices.parent)?;
    let mut figures = begin(choices, &cluster, tell).map_err(|error| cluster.reason_of(error))?;
    figures.kept = cluster.remove(choices.is_kept)?;
    match &figures.kept {
        Some(kept) => tell(&format!(
            "Everything has ended; the store and the messages of all are kept in {}: `varve serve {}` serves it again.",
            kept.display(),
            crate::output::word(&kept.join("store"))
        )),
        None => tell("Everything has ended and is removed again."),
    }
    Ok(figures)
}

fn begin(choices: &Choices, cluster: &Cluster, tell: &mut dyn FnMut(&str)) -> Result<Figures> {
    let address = cluster.serve((Ipv4Addr::LOCALHOST, 0).into())?.address;
    let [a, b] = MOUNTS.map(|name| cluster.mount(name, address));
    let methods = [a?, b?].map(|ready| ready.method);
    let roots = MOUNTS.map(|name| cluster.mount_point(name));
    tell(&format!(
        "A new store is served on {address}, and mounted as {} by {}",
        roots[0].display(),
        methods[0]
    ));
    tell(&format!("and as {} by {}.", roots[1].display(), methods[1]));
    let progress = Mutex::new(Progress::new());
    let mut demonstration = Demonstration { choices, cluster, address, roots, tell, progress };
    let mut figures = demonstration.work(methods)?;
    drop(demonstration);
    for name in MOUNTS {
        cluster.unmount(name)?;
    }
    cluster.stop_server()?;
    stage::check(&cluster.store())?;
    figures.store_bytes = bytes_below(&cluster.store());
    show::end(&figures, tell);
    Ok(figures)
}

impl Demonstration<'_> {
    fn work(&mut self, methods: [String; 2]) -> Result<Figures> {
        let Choices { plan, time, .. } = self.choices;
        show::head(self.tell, "What mount a changes, mount b looks at:");
        let steps = self.steps(plan)?;
        let mut files_compared = {
            let [a, b] = self.places();
            steps::compare(plan, &a, &b)?
        };
        show::head(
            self.tell,
            "A tree is unpacked on mount a, and each file read on mount b as soon as it is closed:",
        );
        let follow = self.follow(plan)?;
        files_compared += u64::from(plan.files);
        show::head(self.tell, "Programs on both mounts work in the same directories:");
        let (together, compared, ()) = self.together("both", |shared| {
            self.wait(shared, *time, "both mounts work");
            Ok(())
        })?;
        show::together(&together, self.tell);
        show::head(self.tell, "The same, and the server is killed and started again meanwhile:");
        let (work, again, (away, back)) =
            self.together("restart", |shared| self.restart(shared))?;
        let longest = work.rows.iter().map(|row| row.max_us).fold(0.0, f64::max);
        let restart = Restart {
            away_s: away.as_secs_f64(),
            back_s: back.map(|back| back.saturating_sub(away).as_secs_f64()),
            longest_call_s: longest / 1e6,
            work,
        };
        show::restart(&restart, self.tell);
        Ok(Figures {
            plan: *plan,
            address: self.address,
            methods,
            steps,
            follow,
            together,
            restart,
            files_compared: files_compared + compared.files + again.files,
            lines_compared: compared.lines + again.lines,
            store_bytes: 0,
            kept: None,
        })
    }

    fn places(&self) -> [Directory; 2] {
        self.roots.each_ref().map(Directory::new)
    }

    fn roots(&self) -> [&Path; 2] {
        self.roots.each_ref().map(PathBuf::as_path)
    }

    fn stats(&self) -> Result<Stats> {
        self.cluster.stats(self.address)
    }
}

/// The work of a [`Demonstration`].
impl Demonstration<'_> {
    /// Shows that `done` of `all` is done.
    fn at(&self, done: u64, all: u64, what: &str) {
        let permille = u16::try_from(done * 1000 / all.max(1)).unwrap_or(u16::MAX);
        self.progress.lock().bar(Some(permille), what);
    }

    fn tell(&mut self, row: &Row) {
        self.progress.lock().clear();
        show::row(row, self.tell);
    }

    /// Changes on the first mount, looks on the second.
    fn steps(&mut self, plan: &Plan) -> Result<Vec<Row>> {
        let places = self.places();
        let mut rows = Vec::new();
        let mut before = self.stats()?;
        for step in steps::STEPS {
            let at = usize::from(step.looks);
            let watch = |done| self.at(done, u64::from(plan.files), step.name);
            let place = Timed::new(&places[at], &watch);
            let measured = (step.run)(plan, &place).map_err(|error| {
                let text = format!("{} on mount {}: {}", step.name, MOUNTS[at], error.message());
                let hint = error.next_step().map(str::to_owned);
                Error::failed(text).hint(hint.unwrap_or_default())
            })?;
            let times = place.into_times();
            let now = self.stats()?;
            let requests = requests(&now.since(&before));
            before = now;
            let mut row = Row::new(step.name, MOUNTS[at], measured.time, &times, Some(requests));
            row.operations = measured.operations;
            row.bytes = measured.bytes;
            row.per_operation();
            self.tell(&row);
            rows.push(row);
        }
        Ok(rows)
    }

    /// One mount reads what the other makes.
    fn follow(&mut self, plan: &Plan) -> Result<Vec<Row>> {
        let begin = Instant::now();
        let watch = |done| self.at(done, u64::from(plan.files), "a tree is unpacked and read");
        let [made, read] = work::follow(plan, self.roots(), &watch)?;
        let time = begin.elapsed();
        let steps =
            [("write 4 KiB files", MOUNTS[0], made), ("list and read them", MOUNTS[1], read)];
        let rows = steps.map(|(step, on, times)| Row::new(step, on, time, &times, None));
        rows.iter().for_each(|row| self.tell(row));
        Ok(rows.into())
    }

    /// Programs on both mounts work until `meanwhile` returns; then compares.
    fn together<T>(
        &self,
        phase: &str,
        meanwhile: impl FnOnce(&Shared) -> Result<T>,
    ) -> Result<(Together, work::Compared, T)> {
        let (before, begin) = (self.stats()?, Instant::now());
        let (met, done) = work::together(phase, self.roots(), meanwhile)?;
        let (time, now) = (begin.elapsed(), self.stats()?);
        self.progress.lock().clear();
        let compared = work::verify(phase, self.roots(), &done)?;
        // Another server counts anew.
        let requests = (now.seconds > before.seconds).then(|| requests(&now.since(&before)));
        Ok((Together::new(time, &done, requests), compared, met))
    }

    /// Waits for `time`, or until a program has ended.
    fn wait(&self, shared: &Shared, time: Duration, what: &str) {
        let begin = Instant::now();
        while begin.elapsed() < time && !shared.is_stopped() {
            let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            self.at(micros(begin.elapsed()), micros(time), what);
            std::thread::sleep(TICK.min(time));
        }
    }

    /// Kills the server in the middle of the work, and starts it again. Returns how long it was away, and how long after its death each
    /// program went on.
    fn restart(&self, shared: &Shared) -> Result<(Duration, [Duration; 2])> {
        let restarted = self.restart_server(shared);
        if restarted.is_err() {
            // The programs wait for a server, and without one they would for ever.
            self.cluster.end();
        }
        restarted
    }

    fn restart_server(&self, shared: &Shared) -> Result<(Duration, [Duration; 2])> {
        let half = self.choices.time / 2;
        self.wait(shared, half, "both mounts work");
        let begin = Instant::now();
        self.cluster.kill_server()?;
        shared.server_is_killed();
        self.wait(shared, AWAY, "the server is away");
        self.cluster.serve(self.address)?;
        let away = begin.elapsed();
        let back = loop {
            match shared.back() {
                Some(back) => break back,
                None if shared.is_stopped() => break [away; 2],
                None if begin.elapsed() > BACK_MAX => {
                    let text = format!(
                        "programs have not gone on {BACK_MAX:?} after the server was killed"
                    );
                    return Err(steps::wrong(text));
                }
                None => self.wait(shared, TICK, "the server is back"),
            }
        };
        self.wait(shared, half, "both mounts work again");
        Ok((away, back))
    }
}

impl Row {
    fn new(
        step: &'static str,
        on: &'static str,
        time: Duration,
        times: &Times,
        requests: Option<BTreeMap<String, u64>>,
    ) -> Row {
        let [p50_us, p99_us, max_us] = times.micros([0.5, 0.99, 1.0]);
        let mut row = Row {
            step,
            on,
            operations: times.count(),
            bytes: 0,
            seconds: time.as_secs_f64(),
            per_second: 0.0,
            p50_us,
            p99_us,
            max_us,
            requests,
            requests_per_operation: None,
        };
        row.per_operation();
        row
    }

    /// Sets what is for an operation.
    fn per_operation(&mut self) {
        self.per_second = ratio(self.operations, self.seconds);
        self.requests_per_operation = self.requests.as_ref().map(|requests| {
            ratio(
                requests.values().sum(),
                f64::from(u32::try_from(self.operations).unwrap_or(u32::MAX)),
            )
        });
    }
}

impl Together {
    fn new(time: Duration, done: &[Done; 2], requests: Option<BTreeMap<String, u64>>) -> Together {
        let [a, b] = done;
        let kinds = KINDS.iter().zip(a.times.iter().zip(&b.times));
        let rows: Vec<Row> = kinds
            .map(|(kind, (on_a, on_b))| {
                let mut times = on_a.clone();
                times.extend(on_b);
                Row::new(kind, "a, b", time, &times, None)
            })
            .collect();
        let operations: u64 = rows.iter().map(|row| row.operations).sum();
        let sum = requests.as_ref().map(|requests| requests.values().sum());
        Together {
            seconds: time.as_secs_f64(),
            rows,
            rounds: [a.rounds, b.rounds],
            claims: [a, b].map(|done| done.claims.len() as u64),
            requests,
            requests_per_operation: sum.map(|sum| ratio(sum, operations as f64)),
        }
    }
}

fn requests(of: &Stats) -> BTreeMap<String, u64> {
    of.operations.iter().map(|(kind, requests)| (kind.clone(), requests.count)).collect()
}

#[allow(clippy::cast_precision_loss, reason = "is read by people")]
fn ratio(count: u64, of: f64) -> f64 {
    if of > 0.0 { count as f64 / of } else { 0.0 }
}
