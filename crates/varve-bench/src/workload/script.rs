//! Programs that the user names, one after the other: what is in none of the other workloads.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Expects, Ops, Phase, Plan, Worker};
use crate::Failure;
use crate::op::Op;

/// The options.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct Options {
    /// A phase, as NAME=SCRIPT: a shell script that runs in an empty directory, or in what the phases before it have left
    #[arg(required = true, value_name = "NAME=SCRIPT", value_parser = named)]
    phases: Vec<(String, String)>,
    /// About how many files and directories there are at most, for file systems that must know before
    #[arg(long, default_value_t = 1_000_000)]
    inodes: u64,
}

fn named(phase: &str) -> Result<(String, String), String> {
    match phase.split_once('=') {
        Some((name, script)) if !name.is_empty() => Ok((name.to_owned(), script.to_owned())),
        _ => Err("a phase is NAME=SCRIPT".to_owned()),
    }
}

/// The workload.
pub(super) struct Script {
    options: Options,
}

impl Script {
    /// With these options.
    pub(super) fn new(options: &Options) -> Result<Script, Failure> {
        let names: BTreeSet<&String> = options.phases.iter().map(|(name, _)| name).collect();
        if names.len() < options.phases.len() {
            return Err("two phases of one name cannot be told apart".into());
        }
        Ok(Script { options: options.clone() })
    }
}

impl Plan for Script {
    fn phases(&self) -> Vec<Phase> {
        let phase = |(name, _): &(String, String)| Phase { workers: Some(1), ..Phase::cold(name) };
        self.options.phases.iter().map(phase).collect()
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        let script = self.options.phases.get(phase).filter(|_| worker.index == 0);
        Box::new(script.into_iter().map(|(_, script)| Op::Run(script.clone())))
    }

    fn expects(&self, _phase: usize, _workers: u64) -> Expects<'_> {
        // A script that fails ends the run; what more must hold is its own affair.
        Box::new(std::iter::empty())
    }

    fn inodes(&self) -> u64 {
        self.options.inodes
    }
}
