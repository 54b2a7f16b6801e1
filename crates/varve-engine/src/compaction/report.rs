//! Tells what the store did and holds.

use super::compactor::Compactor;
use super::defragment::fragmentation_of;
use crate::keyspace::Keyspace;
use crate::metrics::{
    KeyspaceReport, LevelReport, MapReport, MetricsReport, PlanReport, StateReport,
};
use crate::place::LEVELS;
use crate::read_state::ReadState;
use crate::sublevel_map::map::SublevelMap;
use crate::version::Version;

impl Compactor {
    /// Counters and sizes as one JSON object.
    pub(crate) fn metrics_json(&self) -> String {
        // Plain structs of numbers and strings always serialize.
        serde_json::to_string(&self.report()).unwrap_or_default()
    }

    /// Counters and sizes.
    pub(crate) fn report(&self) -> MetricsReport {
        let read_state = self.read_states.get();
        let memtable_bytes = read_state.memtables().map(|memtable| memtable.bytes()).sum();
        let (plan, changes, mix) = self.plans.present();
        let cache_bytes = self.cache.memory_bytes();
        let state = StateReport {
            last_seq: self.snapshots.last_seq().get(),
            memtable_bytes,
            immutable_memtables: read_state.immutables.len(),
            cache_bytes,
            memory_bytes: memtable_bytes as u64 + cache_bytes,
            memory_budget_bytes: self.options.memory_budget_bytes,
            debt_bytes: self.compaction_debt(),
            delay_ns_per_byte: self.pace.delay(),
            live_snapshots: self.snapshots.live().len(),
            named_snapshots: read_state.snapshots.len(),
            branches: read_state.branches.len(),
            branch_tables: read_state
                .branch_spaces
                .values()
                .flat_map(|s| s.version.tables())
                .count(),
            plan: PlanReport { plan, changes, mix },
            poisoned: self.health.poison.cause().map(str::to_owned),
            keyspaces: read_state
                .keyspaces
                .iter()
                .map(|space| keyspace_report(&read_state, space))
                .collect(),
        };
        self.metrics.report(state)
    }
}

fn keyspace_report(read_state: &ReadState, space: &Keyspace) -> KeyspaceReport {
    let levels = (0..LEVELS).map(|level| {
        let sublevels = space.version.level(level);
        let metas = || sublevels.iter().flat_map(|run| run.tables()).map(|table| table.meta());
        LevelReport {
            level,
            sublevels: sublevels.len(),
            tables: metas().count(),
            bytes: metas().map(|meta| meta.total_bytes()).sum(),
            entries: metas().map(|meta| meta.entries).sum(),
            tombstones: metas().map(|meta| meta.tombstones).sum(),
        }
    });
    let uses = space.version.segment_uses();
    KeyspaceReport {
        segments: uses.len(),
        segment_bytes: uses.iter().map(|segment| segment.record_bytes).sum(),
        segment_used_bytes: uses.iter().map(|segment| segment.used_bytes).sum(),
        name: space.name.to_string(),
        memtable_rows: read_state.memtables().map(|memtable| memtable.rows(space.id)).sum(),
        levels: levels.collect(),
        fragmentation: fragmentation_of(&space.version),
        sublevel_map: space.version.map().map(|map| map_report(&space.version, map)),
    }
}

fn map_report(version: &Version, map: &SublevelMap) -> MapReport {
    let (fingerprints, whole_keys, degraded) = map.contents();
    let tables = version.tables().filter(|(_, table)| version.number(table).is_some()).count();
    MapReport { tables, fingerprints, whole_keys, degraded, memory_bytes: map.memory_bytes() }
}
