//! Calls of a metadata server over TCP, without a mount: what the server and its client take for each.
//!
//! 1. For each combination of clients, depth and directories: a new store and a server for it ([`crate::server`]).
//! 2. Each client connects and has one directory, its own or one for all. Then come the calls in turn ([`Call`]), each client with as many under
//!    way as the depth says, on one connection ([`mod@line`]) or by threads of the client that mounts have ([`library`]).
//! 3. CPU time of the server is that of its process, with flushes and merges; of clients that of their threads.
//!
//! The combinations follow one another in each round, so that what changes on the machine meets all of them.

mod library;
mod line;
mod report;
mod work;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use varve_fs::FormatOptions;

use crate::meter::check_interrupt;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::{Failure, machine};

use library::Library;
use line::Line;
use work::{Call, Files};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many clients at once (repeatable)
    #[arg(long, value_name = "COUNT", default_values_t = [1, 8], value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: Vec<u32>,
    /// How many calls each client has under way (repeatable)
    #[arg(long, value_name = "COUNT", default_values_t = [1, 16, 64], value_parser = clap::value_parser!(u32).range(1..=1000))]
    depth: Vec<u32>,
    /// Where the clients work (repeatable) [default: own, and shared if there are several clients]
    #[arg(long, value_enum, value_name = "WHERE")]
    dirs: Vec<Dirs>,
    /// By what (repeatable)
    #[arg(long, value_enum, value_name = "BY", default_values_t = [By::Frames])]
    by: Vec<By>,
    /// How many files all clients of a combination make together
    #[arg(long, value_name = "COUNT", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    files: u32,
    /// Only this call, and those before it that it needs (repeatable)
    #[arg(long, value_enum, value_name = "CALL")]
    only: Vec<Call>,
    /// Rounds; the report gives medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure a server that runs already, instead of one for a new store; what is made there stays. CPU time of the server is not known then
    #[arg(long, value_name = "ADDRESS:PORT")]
    server: Option<SocketAddr>,
    /// How long clients may keep what they have learned: an argument of `varve serve`
    #[arg(long, value_name = "POLICY", conflicts_with = "server")]
    lease_policy: Option<String>,
    /// Directory for stores, on the disk to measure [default: where temporary files go]
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// The program varve [default: beside this one]
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) varve: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Where clients work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Dirs {
    /// Each in a directory of its own
    Own,
    /// All in one
    Shared,
}

/// What makes the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum By {
    /// One thread and one connection for each client, which sends and reads many messages at a time
    Frames,
    /// The client that mounts have, by as many threads as calls are under way
    Client,
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Course {
    by: By,
    dirs: Dirs,
    clients: u32,
    depth: u32,
}

/// What happened in one phase of one round.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    /// Calls, or names of listings.
    count: u64,
    took: Duration,
    server_cpu: Option<Duration>,
    client_cpu: Duration,
    counts: Counts,
}

/// What went over a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Calls, or names of listings.
    done: u64,
    requests: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// Notices that something is to be dropped.
    notices: u64,
    /// CPU time of the threads.
    cpu: Duration,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.done += other.done;
        self.requests += other.requests;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.notices += other.notices;
        self.cpu += other.cpu;
    }
}

/// The rounds of each call of each combination.
type Found = BTreeMap<(Course, Call), Vec<Measured>>;

/// One client at work.
enum Client {
    Frames(Line),
    Library(Library),
}

impl Client {
    /// Makes the calls of a phase.
    fn run(&mut self, call: Call, files: &mut Files, depth: u32) -> Result<Counts, Failure> {
        match self {
            Client::Frames(line) => line.run(call, files, depth),
            Client::Library(library) => library.run(call, files, depth),
        }
    }
}

/// Measures all and prints it.
pub(crate) fn run(options: &Options, varve: &Path) -> Result<(), Failure> {
    let mut found = Found::new();
    for round in 1..=options.rounds {
        for course in courses(options) {
            eprintln!("round {round}: {course}");
            let measured = measure(options, varve, course, round);
            for (call, measured) in measured.map_err(|error| format!("{course}: {error}"))? {
                found.entry((course, call)).or_default().push(measured);
            }
        }
    }
    match options.json {
        true => report::print_json(&found),
        false => {
            report::print_table(&found);
            Ok(())
        }
    }
}

/// All combinations, each once.
fn courses(options: &Options) -> Vec<Course> {
    let mut courses = Vec::new();
    for &by in &options.by {
        for &clients in &options.clients {
            let dirs = match (&options.dirs[..], clients) {
                ([], 1) => &[Dirs::Own][..],
                ([], _) => &[Dirs::Own, Dirs::Shared],
                (given, _) => given,
            };
            for &dirs in dirs {
                courses.extend(options.depth.iter().map(|&depth| Course {
                    by,
                    dirs,
                    clients,
                    depth,
                }));
            }
        }
    }
    courses.sort_unstable();
    courses.dedup();
    courses
}

/// The calls to make, in their order.
fn calls(options: &Options) -> impl Iterator<Item = Call> {
    let is_wanted = |call: &Call| {
        options.only.is_empty()
            || options.only.contains(call)
            || *call == Call::Create
            || (*call == Call::Rename && options.only.contains(&Call::Unlink))
    };
    Call::ALL.into_iter().filter(is_wanted)
}

fn measure(
    options: &Options,
    varve: &Path,
    course: Course,
    round: u32,
) -> Result<Vec<(Call, Measured)>, Failure> {
    let scratch = Scratch::new(options.base.as_deref())?;
    let own = match options.server {
        Some(_) => None,
        None => Some(serve(options, varve, &scratch)?),
    };
    let address = options.server.or(own.as_ref().map(Server::address)).ok_or("no server")?;
    let number = u64::from(std::process::id()) << 32 | u64::from(round);
    let files = (options.files / course.clients).max(1);
    let mut clients = Vec::new();
    for at in 0..course.clients {
        let client = match course.by {
            By::Frames => Client::Frames(Line::connect(address, [number, at.into()])?),
            By::Client => Client::Library(Library::connect(address, [number, at.into()])?),
        };
        clients.push((client, Files::new(at, files)));
    }
    let (shared, mut measured) = (course.dirs == Dirs::Shared, Vec::new());
    let name = |at: usize| {
        let at = if shared { 0 } else { at };
        format!("rpc-{number:x}-{}-{}-{at}", course.clients, course.depth)
    };
    for (at, (client, files)) in clients.iter_mut().enumerate() {
        let name = name(at);
        files.dir = match client {
            Client::Frames(line) => line.mkdir(name.as_bytes(), at == 0 || !shared)?,
            Client::Library(library) => library.mkdir(name.as_bytes(), at == 0 || !shared)?,
        };
    }
    for call in calls(options) {
        check_interrupt()?;
        let cpu = || own.as_ref().map(|server| machine::cpu_of(server.id())).transpose();
        own.as_ref().map_or(Ok(()), |server| machine::settle(server.id()))?;
        let (before, begin) = (cpu()?, Instant::now());
        let counts = at_once(&mut clients, call, course.depth)?;
        let took = begin.elapsed();
        let after = cpu()?;
        measured.push((
            call,
            Measured {
                count: counts.done,
                took,
                server_cpu: after.zip(before).map(|(after, before)| after.saturating_sub(before)),
                client_cpu: counts.cpu,
                counts,
            },
        ));
    }
    drop(clients);
    own.map_or(Ok(()), Server::stop)?;
    Ok(measured)
}

/// Serves a new store.
fn serve(options: &Options, varve: &Path, scratch: &Scratch) -> Result<Server, Failure> {
    let (store, log) = (scratch.path().join("store"), scratch.path().join("serve.log"));
    varve::store::format(&store, &FormatOptions::default())?;
    let policy = options.lease_policy.iter().flat_map(|it| ["--lease-policy".into(), it.clone()]);
    Server::start(varve, &store, &policy.collect::<Vec<_>>(), &log)
}

/// Makes the calls of a phase by all clients.
fn at_once(clients: &mut [(Client, Files)], call: Call, depth: u32) -> Result<Counts, Failure> {
    std::thread::scope(|scope| {
        let run = |(client, files): &'_ mut (Client, Files)| client.run(call, files, depth);
        let threads: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(move || run(client))).collect();
        let mut all = Counts::default();
        let ended: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        for ended in ended {
            all.add(ended.unwrap_or_else(|_| Err("a client panicked".into()))?);
        }
        Ok(all)
    })
}

impl std::fmt::Display for Course {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Course { by, dirs, clients, depth } = self;
        write!(f, "{by:?}, {dirs:?} directories, {clients} clients, {depth} under way")
    }
}
