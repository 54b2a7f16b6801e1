//! `varve-bench trace`: what file systems are asked, out of logs, and what that shows (Ren, thesis, 3.3, 3.4; Sinnamohideen, thesis, 3).
//!
//! `import` makes a trace of a log of another system, `generate` one with a published [mix](mixes) of operations, `show` prints its
//! records, `analyze` what it shows ([`report`]). The format and the analysis are those of `varve-trace`.

mod generate;
mod mixes;
mod report;

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use varve_trace::import::{Source, import};
use varve_trace::{Analysis, Reader, Record, TraceError, Writer};

use crate::{Failure, output};
use mixes::MIXES;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a trace out of a log of another system
    Import {
        /// What the log is of
        #[arg(long, value_enum)]
        from: From,
        /// The log (`-`: the standard input)
        log: PathBuf,
        /// The trace to make
        trace: PathBuf,
    },
    /// Make a trace with a published mix of operations
    Generate(Generation),
    /// Print the records of a trace, a line each
    Show {
        /// The trace (`-`: the standard input)
        trace: PathBuf,
    },
    /// What a trace shows: operations over time, depths, popularity, renames that conflict, operations on several objects
    Analyze {
        /// The trace (`-`: the standard input)
        trace: PathBuf,
        /// Also write charts into this directory, as SVG
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
        /// Print JSON instead of tables
        #[arg(long)]
        json: bool,
    },
}

/// What a log is of.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum From {
    /// The audit log of an HDFS name node
    Hdfs,
    /// A text dump of NFS calls and replies, as nfsdump writes it
    Nfs,
    /// What `strace -f -ttt -T -y -e trace=%file,%desc` printed
    Strace,
}

#[derive(clap::Args)]
pub(crate) struct Generation {
    /// The mix: linkedin, specsfs97, eecs, deas, campus
    #[arg(long, value_parser = MIXES.map(|mix| mix.name))]
    mix: String,
    /// Files of the namespace in the beginning
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// Operations
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Clients
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    clients: u64,
    /// Operations per second of the trace's time, of all clients together
    #[arg(long, value_name = "PER SECOND", default_value = "1000", value_parser = crate::rate)]
    rate: f64,
    /// Another seed makes another trace
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The trace to make
    trace: PathBuf,
}

/// When generated traces begin, in microseconds since 1970.
const GENERATED_BEGIN_US: u64 = 1_000_000_000_000_000;

fn open(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    match path == Path::new("-") {
        true => Ok(Box::new(BufReader::new(io::stdin()))),
        false => {
            let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok(Box::new(BufReader::new(file)))
        }
    }
}

/// Gives each record of a trace to `each`. Says if the trace is cut.
pub(crate) fn for_each_record(
    path: &Path,
    each: &mut dyn FnMut(&Record) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let wrong = |error: TraceError| format!("{}: {error}", path.display());
    let mut reader = Reader::new(open(path)?).map_err(wrong)?;
    for record in reader.by_ref() {
        each(&record.map_err(wrong)?)?;
    }
    if reader.is_cut() {
        eprintln!(
            "varve-bench: {}: it ends in the middle of a frame, whose records are missing",
            path.display()
        );
    }
    Ok(())
}

/// Makes the trace `path`, which must not be there yet, of what `fill` puts into it. After a failure it is gone.
fn make<T>(
    path: &Path,
    fill: impl FnOnce(&mut Writer<BufWriter<File>>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let wrong = |error: io::Error| format!("{}: {error}", path.display());
    let file = File::create_new(path).map_err(wrong)?;
    let filled = || -> Result<T, Failure> {
        let mut writer = Writer::new(BufWriter::new(file)).map_err(wrong)?;
        let filled = fill(&mut writer)?;
        writer.finish().and_then(|file| file.into_inner()?.sync_all()).map_err(wrong)?;
        Ok(filled)
    };
    filled().inspect_err(|_| drop(std::fs::remove_file(path)))
}

fn import_log(from: From, log: &Path, trace: &Path) -> Result<(), Failure> {
    let source = match from {
        From::Hdfs => Source::Hdfs,
        From::Nfs => Source::Nfs,
        From::Strace => Source::Strace,
    };
    let mut input = open(log)?;
    let imported = make(trace, |writer| {
        import(source, &mut *input, &mut |record| Ok(writer.put(record)?))
            .map_err(|error| format!("{}: {error}", log.display()).into())
    })?;
    output::line(format!(
        "{} operations out of {} lines; {} lines are about none",
        imported.records, imported.lines, imported.left_out
    ));
    Ok(())
}

fn generate_trace(wanted: &Generation) -> Result<(), Failure> {
    let mix = MIXES.iter().find(|mix| mix.name == wanted.mix);
    let mix = mix.ok_or_else(|| format!("there is no mix {}", wanted.mix))?;
    let what = generate::Wanted {
        mix,
        files: wanted.files,
        operations: wanted.operations,
        clients: wanted.clients,
        per_second: wanted.rate,
        begin_us: GENERATED_BEGIN_US,
        seed: wanted.seed,
    };
    make(&wanted.trace, |writer| generate::generate(&what, &mut |record| Ok(writer.put(record)?)))?;
    output::line(format!("{} operations with the mix of {}", wanted.operations, mix.source));
    Ok(())
}

/// A record as a line: time in seconds, client, operation, and what it names.
fn shown(record: &Record) -> String {
    let place = |dir: Option<u64>, name: &[u8]| match dir {
        Some(dir) => format!(" {dir}/{}", String::from_utf8_lossy(name).escape_debug()),
        None => String::new(),
    };
    let mut line = format!(
        "{}.{:06} {} {}",
        record.at_us / 1_000_000,
        record.at_us % 1_000_000,
        record.client,
        record.op.name()
    );
    line.push_str(&place(record.dir, &record.name));
    if record.new_dir.is_some() {
        line.push_str(" ->");
        line.push_str(&place(record.new_dir, &record.new_name));
    }
    let object = record.object.map(|object| format!(" = {object}"));
    line.push_str(&object.unwrap_or_default());
    if record.is_dir {
        line.push('/');
    }
    if record.error != 0 {
        line.push_str(&format!(" errno {}", record.error));
    }
    if record.took_us != 0 {
        line.push_str(&format!(" {} us", record.took_us));
    }
    line
}

/// Runs a subcommand.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Import { from, log, trace } => import_log(*from, log, trace),
        Command::Generate(wanted) => generate_trace(wanted),
        Command::Show { trace } => for_each_record(trace, &mut |record| {
            output::line(shown(record));
            output::outcome()
        }),
        Command::Analyze { trace, plots, json } => {
            let mut analysis = Analysis::default();
            for_each_record(trace, &mut |record| {
                analysis.learn(record);
                Ok(())
            })?;
            if let Some(dir) = plots {
                report::write_charts(&analysis, dir)?;
            }
            match json {
                true => output::line(serde_json::to_string_pretty(&report::json(&analysis))?),
                false => report::print(&analysis),
            }
            io::stdout().flush()?;
            Ok(())
        }
    }
}
