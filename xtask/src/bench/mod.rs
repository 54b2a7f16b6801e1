//! Operations on a Varve mount beside ext4, beside a file system without storage, and through the library.
//!
//! 1. One round runs the whole sequence of operations ([`ops`]) on each subject in turn, then through the
//!    library; rounds follow each other (A B C A B C), so that a slow minute of the machine meets all.
//! 2. Each operation is timed with the CPU time of the client (this process) and of the daemon.
//! 3. The report ([`report`]) gives medians over the rounds.

mod ops;
mod report;
mod subject;

use std::path::PathBuf;

use crate::machine::{self, Scratch};
use crate::run::{Failure, Outcome, Step};

use ops::Plan;
use report::Report;
use subject::{Kind, Programs, Subject, Transport};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Files in all
    #[arg(long, default_value_t = 200_000)]
    files: u64,
    /// Directories they are spread over
    #[arg(long, default_value_t = 200)]
    dirs: u64,
    /// Rounds; the report gives medians
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Visit the files in shuffled order in stat, chmod, rename and unlink
    #[arg(long)]
    shuffle: bool,
    /// Also unpack this tarball on both
    #[arg(long, value_name = "TARBALL")]
    tree: Option<PathBuf>,
    /// Use this varve program instead of building one
    #[arg(long, value_name = "PROGRAM")]
    varve: Option<PathBuf>,
    /// Measure Varve with requests travelling so (repeatable)
    #[arg(long, value_enum, default_values_t = [Transport::Auto])]
    transport: Vec<Transport>,
    /// Also measure a file system without storage over the same transports
    #[arg(long)]
    null: bool,
    /// Leave ext4 out
    #[arg(long)]
    no_ext4: bool,
    /// Leave the library out
    #[arg(long)]
    no_library: bool,
    /// Another argument for varve mount (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    mount_arg: Vec<String>,
    /// Directory for stores and images, on the disk to measure
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub(crate) fn run(options: &Options) -> Outcome {
    let varve = machine::varve_program(options.varve.as_deref())?;
    let built = |wanted, package, name| match wanted {
        true => machine::example(package, name).map(Some),
        false => Ok(None),
    };
    let programs = Programs { varve, null: built(options.null, "varve-fuse", "null")? };
    let library = built(!options.no_library, "varve", "libbench")?;
    machine::enter_private_namespace()?;
    let tarball = unpacked_tarball(options)?;
    let plan = Plan { files: options.files, dirs: options.dirs.max(1), shuffle: options.shuffle };
    let mut report = Report::default();
    for round in 1..=options.rounds {
        for kind in subjects(options) {
            eprintln!("round {round} of {}: {}", options.rounds, kind.name());
            let scratch = Scratch::new(options.base.as_deref())?;
            let mut subject =
                Subject::new(kind, &programs, &scratch, &options.mount_arg, options.files)?;
            ops::run(&plan, &mut subject, &mut report)?;
            if let Some((_, tarball)) = &tarball {
                ops::unpack(tarball, &mut subject, &mut report)?;
            }
            subject.finish(&mut report)?;
        }
        if let Some(library) = &library {
            eprintln!("round {round} of {}: library", options.rounds);
            measure_library(library, options, &mut report)?;
        }
    }
    if options.json { report.print_json(options) } else { report.print_table(options) }
}

/// What each round measures.
fn subjects(options: &Options) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = options.transport.iter().map(|&over| Kind::Varve(over)).collect();
    if options.null {
        kinds.extend(options.transport.iter().map(|&over| Kind::Null(over)));
    }
    if !options.no_ext4 {
        kinds.push(Kind::Ext4);
    }
    kinds
}

/// The tarball without its compression, so that unpacking measures the file system.
fn unpacked_tarball(options: &Options) -> Result<Option<(Scratch, PathBuf)>, Failure> {
    let Some(tree) = &options.tree else { return Ok(None) };
    let scratch = Scratch::new(options.base.as_deref())?;
    let tarball = scratch.path("tree.tar");
    let script = "case \"$1\" in *.xz) xz -dc \"$1\";; *.gz) gzip -dc \"$1\";; *) cat \"$1\";; esac > \"$2\"";
    Step::new("sh").args(["-c", script, "sh"]).arg(tree).arg(&tarball).quiet()?;
    Ok(Some((scratch, tarball)))
}

/// Runs the library's own program, which prints one JSON object of operation to microseconds.
fn measure_library(program: &std::path::Path, options: &Options, report: &mut Report) -> Outcome {
    let scratch = Scratch::new(options.base.as_deref())?;
    let output = Step::new(program)
        .args(["--files", &options.files.to_string(), "--dirs", &options.dirs.to_string()])
        .arg(scratch.path("store"))
        .capture()?;
    report.add_library(&output)
}
