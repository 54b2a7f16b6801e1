//! One JSON object for programs.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::Report;
use crate::workload::Choice;
use crate::{Failure, output};

/// Where the first step of the latencies ends, and each later one over that before it.
const STEP_NANOS_MIN: u64 = 100;
const STEP_FACTOR: f64 = 1.1;

impl Report {
    /// Prints it.
    pub(crate) fn print_json(&self, workload: &Choice) -> Result<(), Failure> {
        let mut phases = Vec::new();
        for (number, phase) in self.phases.iter().enumerate() {
            let mut targets = Vec::new();
            for target in 0..self.targets.len() {
                targets.push(self.target_json(target, number)?);
            }
            phases.push(json!({
                "phase": phase.name,
                "counted": self.unit(number),
                "workers": self.workers(phase),
                "cold": self.state(phase) == "cold",
                "targets": targets,
            }));
        }
        let all = json!({
            "workload": workload, "setup": self.setup, "seconds": self.seconds, "phases": phases,
        });
        output::line(serde_json::to_string_pretty(&all)?);
        Ok(())
    }

    fn target_json(&self, target: usize, phase: usize) -> Result<Value, Failure> {
        let all = self.latencies(target, phase, None)?;
        // Of a round that was ended before there is nothing to tell.
        let has_run = self.rounds(target, phase).next().is_some();
        let mut kinds = Map::new();
        for kind in self.kinds(phase) {
            let latencies = self.latencies(target, phase, Some(kind))?;
            if latencies.is_empty() {
                continue;
            }
            let told = json!({
                "count": latencies.len(),
                "latency_us": latency_us(&latencies),
                "latency_steps": latency_steps(&latencies),
            });
            kinds.insert(kind.to_owned(), told);
        }
        let rounds: Vec<Value> = self
            .rounds(target, phase)
            .map(|figure| {
                json!({
                    "count": figure.count,
                    "seconds": figure.seconds,
                    "ended_early": figure.is_cut,
                    "per_second": figure.per_second,
                    "client_cpu_us": figure.client_cpu_us,
                    "daemon_cpu_us": figure.daemon_cpu_us,
                    "machine_cpu_us": figure.machine_cpu_us,
                    "sync_seconds": figure.sync_seconds,
                    "device": figure.traffic.map(|traffic| json!({
                        "reads": traffic.reads,
                        "read_bytes": traffic.read_bytes,
                        "writes": traffic.writes,
                        "written_bytes": traffic.written_bytes,
                    })),
                    "row_bytes": figure.row_bytes,
                    "later_written_bytes": figure.later_bytes,
                    "opening": figure.opening,
                    "memory_peak_bytes": figure.memory_peak_bytes,
                    "slab_bytes": figure.slab_bytes,
                    "space_bytes": figure.space_bytes,
                    "per_tenth_of_a_second": figure.buckets,
                })
            })
            .collect();
        Ok(json!({
            "target": self.targets[target],
            "direct_io": self.direct[target],
            "sessions": self.sessions[target],
            "ratio": self.ratio(target, phase),
            "write_amplification": self.amplification(target, phase),
            "per_second": has_run.then(|| self.spread(target, phase, |figure| figure.per_second)),
            "latency_us": has_run.then(|| latency_us(&all)),
            "latency_steps": latency_steps(&all),
            "kinds": kinds,
            "rounds": rounds,
        }))
    }
}

fn latency_us(latencies: &Histogram<u64>) -> Value {
    let us = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
    json!({
        "mean": latencies.mean() / 1e3, "p50": us(0.5), "p90": us(0.9), "p99": us(0.99),
        "p99.9": us(0.999), "p99.99": us(0.9999), "max": latencies.max() as f64 / 1e3,
    })
}

/// How many operations took so long.
fn latency_steps(latencies: &Histogram<u64>) -> Vec<Value> {
    latencies
        .iter_log(STEP_NANOS_MIN, STEP_FACTOR)
        .filter(|step| step.count_since_last_iteration() > 0)
        .map(|step| {
            let (nanos, count) = (step.value_iterated_to(), step.count_since_last_iteration());
            json!({ "up_to_us": nanos as f64 / 1e3, "count": count })
        })
        .collect()
}
