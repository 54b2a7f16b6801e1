//! One JSON object for programs.

use serde_json::{Value, json};

use super::Report;
use crate::Failure;
use crate::workload::Choice;

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
                "workers": self.setup.workers.or(phase.workers).unwrap_or(1),
                "cold": phase.is_cold && !self.setup.warm,
                "targets": targets,
            }));
        }
        let all = json!({
            "workload": workload, "setup": self.setup, "seconds": self.seconds, "phases": phases,
        });
        println!("{}", serde_json::to_string_pretty(&all)?);
        Ok(())
    }

    fn target_json(&self, target: usize, phase: usize) -> Result<Value, Failure> {
        let latencies = self.latencies(target, phase)?;
        let us = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
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
                    "kinds_us": figure.kinds_us,
                    "sync_seconds": figure.sync_seconds,
                    "device": figure.traffic.map(|traffic| json!({
                        "reads": traffic.reads,
                        "read_bytes": traffic.read_bytes,
                        "writes": traffic.writes,
                        "written_bytes": traffic.written_bytes,
                    })),
                    "closing_written_bytes": figure.closing_bytes,
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
            "per_second": self.spread(target, phase, |figure| figure.per_second),
            "latency_us": {
                "mean": latencies.mean() / 1e3, "p50": us(0.5), "p90": us(0.9), "p99": us(0.99),
                "p99.9": us(0.999), "max": latencies.max() as f64 / 1e3,
            },
            "rounds": rounds,
        }))
    }
}
