//! Measures what the number and the placement of the reader threads cost: creates, asks about and removes
//! files on a file system in memory, with one and with two programs at once.
//!
//! ```text
//! cargo run --release -p varve-fuse --example reader_threads [ROUNDS]
//! ```
//!
//! Prints microseconds per operation, wall clock of one program and CPU of server and programs together:
//! the median over the rounds. `getxattr` is exactly one round trip; `create` is LOOKUP, CREATE and a
//! RELEASE that nobody waits for.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measurement drives the machine itself"
)]

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use varve_fuse::{MountOptions, Placement, Session, SessionOptions, UnmountMode, mount, unmount};
use varve_testkit::model::ModelFs;

const FILES: usize = 5000;
const STEPS: [&str; 3] = ["create", "getxattr", "unlink"];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, mode, dir, step] = &arguments[..]
        && mode == "client"
    {
        return client(Path::new(dir), step);
    }
    let rounds = arguments.get(1).map_or(5, |rounds| rounds.parse().unwrap());
    let mut rows: Vec<Row> = configurations()
        .into_iter()
        .flat_map(|options| [1, 2].map(|n| Row::new(&options, n)))
        .collect();
    for _ in 0..rounds {
        for row in &mut rows {
            row.samples.push(measure(&row.options, row.programs));
        }
    }
    println!("{:<36}{:>30}{:>30}", "", "wall us/op", "CPU us/op");
    println!("{:<27}{:>9}{}{}", "readers", "programs", header(), header());
    rows.iter().for_each(Row::print);
}

/// Wall and CPU microseconds per operation of each step.
type Sample = [[f64; 2]; STEPS.len()];

struct Row {
    options: SessionOptions,
    programs: usize,
    samples: Vec<Sample>,
}

impl Row {
    fn new(options: &SessionOptions, programs: usize) -> Row {
        Row { options: options.clone(), programs, samples: Vec::new() }
    }

    fn print(&self) {
        let threads = self.options.threads.map_or(0, NonZeroUsize::get);
        let own = if self.options.clone_device { ", own descriptors" } else { "" };
        let readers = format!("{threads} {:?}{own}", self.options.placement).to_lowercase();
        print!("{readers:<27}{:>9}", self.programs);
        for column in 0..2 {
            for step in 0..STEPS.len() {
                let mut values: Vec<f64> =
                    self.samples.iter().map(|sample| sample[step][column]).collect();
                values.sort_by(f64::total_cmp);
                print!("{:>10.1}", values[values.len() / 2]);
            }
        }
        println!();
    }
}

fn header() -> String {
    STEPS.iter().map(|step| format!("{step:>10}")).collect()
}

fn configurations() -> Vec<SessionOptions> {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let configuration = |(threads, placement, clone_device)| SessionOptions {
        threads: NonZeroUsize::new(threads),
        placement,
        clone_device,
        ..SessionOptions::default()
    };
    [
        (1, Placement::Free, false),
        (1, Placement::Pinned, false),
        (cpus, Placement::Free, false),
        (cpus, Placement::Pinned, false),
        (cpus, Placement::Free, true),
        (cpus, Placement::Pinned, true),
        (2 * cpus, Placement::Free, false),
        (2 * cpus, Placement::Pinned, false),
    ]
    .map(configuration)
    .to_vec()
}

/// One mount; per step the wall and CPU microseconds of one operation.
fn measure(options: &SessionOptions, programs: usize) -> Sample {
    let dir = tempfile::tempdir().unwrap();
    let mounted = mount(dir.path(), &MountOptions::new("memory")).unwrap();
    let session = Session::new(Arc::new(ModelFs::on_this_machine()), mounted, options).unwrap();
    let server = std::thread::spawn(move || session.run());
    let result = STEPS.map(|step| {
        let started: Vec<Child> = (0..programs).map(|i| start(dir.path(), i, step)).collect();
        let server_before = cpu();
        let wall_and_cpu: Vec<[f64; 2]> = started.into_iter().map(finish).collect();
        let server_cpu = (cpu() - server_before).as_secs_f64();
        let sum = |column: usize| wall_and_cpu.iter().map(|of| of[column]).sum::<f64>();
        let per_operation = 1e6 / (FILES * programs) as f64;
        [sum(0) * per_operation, (sum(1) + server_cpu) * per_operation]
    });
    unmount(dir.path(), UnmountMode::Lazy).unwrap();
    server.join().unwrap().unwrap();
    result
}

fn start(mount_point: &Path, program: usize, step: &str) -> Child {
    let dir = mount_point.join(program.to_string());
    fs::create_dir_all(&dir).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args([Path::new("client"), &dir, Path::new(step)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(child: Child) -> [f64; 2] {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut numbers = text.split_whitespace().map(|word| word.parse().unwrap());
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

/// The other program: does one step for all its files and prints its wall and CPU seconds.
fn client(dir: &Path, step: &str) {
    let (cpu_before, begun) = (cpu(), Instant::now());
    for i in 0..FILES {
        let path = dir.join(format!("f{i:06}"));
        match step {
            "create" => drop(fs::File::create(&path).unwrap()),
            "getxattr" => {
                let mut value = [0u8; 16];
                let _ = rustix::fs::getxattr(&path, "user.none", &mut value);
            }
            _ => fs::remove_file(&path).unwrap(),
        }
    }
    let (wall, spent) = (begun.elapsed(), cpu() - cpu_before);
    println!("{} {}", wall.as_secs_f64(), spent.as_secs_f64());
}

fn cpu() -> Duration {
    let spent = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}
