//! `varve gc`: give back room that nobody needs.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use varve::check::MEMORY_BYTES_MIN;
use varve::gc::{self, Collected, GivenBack, Unneeded};
use varve::{Error, Result, size};
use varve_daemon::holder::require_offline;
use varve_engine::{Defragmented, Fit, Fragmentation};

use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
#[command(
    after_help = "Rows that were removed or overwritten keep their room until a merge reaches them. This command writes tables again\n\
    of which one part in 32 or more is such rows. Merges also leave long runs of rows in their old files, which stay\n\
    as long as a part of them is needed. This command moves the rows of files of which less than three quarters is\n\
    needed into new files. Both go as far as there is room. A mounted store does the first when the storage below is\n\
    full, and the second in the background when a quarter of the bytes is not needed."
)]
pub(crate) struct Arguments {
    /// The store; must not be mounted
    #[arg(value_parser = store_path())]
    store: PathBuf,
    /// Which files to combine: those that fill a new one best, or the first that fit (best, first)
    #[arg(long, value_name = "FIT", default_value = "best", value_parser = fit::<Fit>)]
    fit: Fit,
    /// Memory to use, 1M at least
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory)]
    memory: usize,
    /// Change nothing; print the objects of a store on shared storage that nobody needs, and why
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn fit<T: DeserializeOwned>(name: &str) -> std::result::Result<T, serde_json::Error> {
    serde_json::from_value(name.into())
}

fn memory(text: &str) -> std::result::Result<usize, String> {
    match size::parse(text) {
        Ok(bytes) if bytes >= MEMORY_BYTES_MIN => {
            usize::try_from(bytes).map_err(|error| error.to_string())
        }
        Ok(_) => Err(format!("at least {} is needed", size::show(MEMORY_BYTES_MIN))),
        Err(error) => Err(error.to_string()),
    }
}

/// Gives the room back.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    require_offline(&arguments.store)?;
    if arguments.dry_run {
        return show_unneeded(arguments);
    }
    let done = gc::gc(&arguments.store, arguments.memory, arguments.fit)?;
    let objects = gc::objects(&arguments.store, true)?;
    if arguments.json {
        return output::json(&Done { done, objects });
    }
    output::line(format!("{:<28} {:>12} {:>12}", "", "before", "after"));
    type Figure = fn(&Fragmentation) -> String;
    let figures: [(&str, Figure); 6] = [
        ("files of tables", |of| of.files.to_string()),
        ("their size", |of| size::show(of.bytes)),
        ("needed by nobody", |of| size::show(of.dead_bytes)),
        ("zones", |of| of.zones.to_string()),
        ("less than 75 % in use", |of| of.under_utilized.to_string()),
        ("mean run of blocks", |of| size::show(of.mean_run_bytes)),
    ];
    for (name, figure) in figures {
        let Defragmented { before, after, .. } = &done.defragmented;
        let (before, after) = (figure(before), figure(after));
        output::line(format!("{name:<28} {before:>12} {after:>12}"));
    }
    output::line(format!("{} tables rid of what nobody sees", done.reclaimed));
    let Defragmented { rewrites, written_bytes, .. } = done.defragmented;
    output::line(format!("{rewrites} tables written again, {}", size::show(written_bytes)));
    if let Some(objects) = objects {
        show_objects(&objects);
    }
    Ok(())
}

/// What was done, as JSON.
#[derive(Serialize)]
struct Done {
    #[serde(flatten)]
    done: GivenBack,
    /// The objects of a store on shared storage.
    objects: Option<Collected>,
}

fn show_unneeded(arguments: &Arguments) -> Result<()> {
    let Some(objects) = gc::objects(&arguments.store, false)? else {
        return Err(Error::usage("--dry-run is for a store on shared storage")
            .hint("`varve inspect STORE` shows what the tables of a local store hold"));
    };
    if arguments.json {
        return output::json(&objects);
    }
    for Unneeded { name, bytes, reason, .. } in &objects.unneeded {
        output::line(format!("{:>12}  {name}: {reason}", size::show(*bytes)));
    }
    show_objects(&objects);
    Ok(())
}

fn show_objects(Collected { objects, bytes, unneeded }: &Collected) {
    let unneeded_bytes = unneeded.iter().map(|object| object.bytes).sum();
    output::line(format!(
        "{objects} objects with {}; nobody needs {} with {}, which go once they are 10 minutes old",
        size::show(*bytes),
        unneeded.len(),
        size::show(unneeded_bytes)
    ));
}
