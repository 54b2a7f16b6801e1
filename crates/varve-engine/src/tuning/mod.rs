//! The analytic model: which layout, filter and index each level should have (SlimDB, thesis 5.4).
//!
//! 1. [`Costs`] says what each of the eight designs of a level costs: memory per row, and reads of a block per
//!    found lookup, absent lookup and write (table 5.2), and per scan of a prefix.
//! 2. A [`Workload`] is the rows of each level and the shares of the operations. [`Workload::estimate`]
//!    adds the costs up.
//! 3. [`search::frontier`] finds all plans that no other plan beats in both memory and cost: the curve of
//!    figure 5.9. [`search::best`] picks the one for a budget.
//! 4. [`layout::best_plan`] picks among those that a store can carry out.
//!
//! Pure: it decides, and touches nothing. Costs are in random reads of one block.
//!
//! The sums of the paper separate by level: an absent lookup visits every level, a found one all above
//! where it ends, and a row is written to all levels on its way down. So a level's design adds the same
//! to the total whatever the others are, which is what the search relies on.
//!
//! Departure: the paper's model knows no scans, so that it would choose sub-levels for stores that list directories all day.
//! A scan of a prefix reads a block of each sorted run that holds rows of it, and of each that no filter rules out
//! ([`Costs::scan`]). That separates by level, too.

pub mod layout;
pub mod search;
pub mod stored;

use std::fmt;

use serde::Serialize;

/// How a level is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// One sorted run.
    Leveled,
    /// As many sub-levels as levels grow.
    Stepped,
}

/// What one level has: a row of table 5.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Design {
    /// Its layout.
    pub layout: Layout,
    /// Filters in memory: one for each table if leveled, a multi-level filter if stepped.
    pub filter: bool,
    /// Block indexes in memory.
    pub index: bool,
}

impl Design {
    /// The eight designs, in the order of table 5.2.
    pub const ALL: [Design; 8] = [
        Design::new(Layout::Leveled, false, false),
        Design::new(Layout::Leveled, true, false),
        Design::new(Layout::Leveled, true, true),
        Design::new(Layout::Leveled, false, true),
        Design::new(Layout::Stepped, false, false),
        Design::new(Layout::Stepped, true, false),
        Design::new(Layout::Stepped, true, true),
        Design::new(Layout::Stepped, false, true),
    ];

    const fn new(layout: Layout, filter: bool, index: bool) -> Design {
        Design { layout, filter, index }
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layout = match self.layout {
            Layout::Leveled => "leveled",
            Layout::Stepped => "stepped",
        };
        let filter = match self {
            Design { filter: false, .. } => "",
            Design { layout: Layout::Leveled, .. } => " + filter",
            Design { layout: Layout::Stepped, .. } => " + multi-level filter",
        };
        let text = format!("{layout}{filter}{}", if self.index { " + index" } else { "" });
        f.pad(&text)
    }
}

/// What designs are made of costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// How many times larger each level is than the one above, and the sub-levels of a stepped level.
    pub growth: f64,
    /// Rows of a block.
    pub block_rows: f64,
    /// Writing a block in sequence, in random reads of one.
    pub write_cost: f64,
    /// Bits per row of a filter.
    pub filter_bits: f64,
    /// Bits per row of a multi-level filter.
    pub multi_level_bits: f64,
    /// Bits per row of a block index.
    pub index_bits: f64,
    /// The part of absent keys that a filter passes.
    pub filter_passes: f64,
    /// The part of absent keys that a multi-level filter passes.
    pub multi_level_passes: f64,
    /// Rows of the prefix that a scan reads, such as the names of a directory.
    pub prefix_rows: f64,
}

impl Costs {
    /// As in the thesis: a solid state disk of 4000 random reads and 107 MB of sequential writes a
    /// second, tables 5.2 and 5.6.
    pub const THESIS: Costs = Costs {
        growth: 8.0,
        block_rows: 16.0,
        write_cost: 0.146,
        filter_bits: 13.0,
        multi_level_bits: 15.0,
        index_bits: 2.0,
        filter_passes: 0.001,
        multi_level_passes: 0.002,
        prefix_rows: 16.0,
    };

    /// As measured of Varve's structures: binary fuse filters, multi-level filters of 12 + 4 bits,
    /// Elias-Fano indexes.
    pub const VARVE: Costs = Costs {
        filter_bits: 9.1,
        multi_level_bits: 17.0,
        index_bits: 0.75,
        filter_passes: 0.0039,
        multi_level_passes: 0.0019,
        ..Costs::THESIS
    };

    /// Bits of memory per row.
    pub fn memory_bits(&self, design: Design) -> f64 {
        let filter = match design.layout {
            Layout::Leveled => self.filter_bits,
            Layout::Stepped => self.multi_level_bits,
        };
        let of = |has: bool, bits: f64| if has { bits } else { 0.0 };
        of(design.filter, filter) + of(design.index, self.index_bits)
    }

    /// Reads of a lookup that ends in the level: of the index too, where it is not in memory.
    pub fn found(&self, design: Design) -> f64 {
        let reads = if design.index { 1.0 } else { 2.0 };
        match design {
            Design { layout: Layout::Stepped, filter: false, .. } => {
                reads * (self.growth + 1.0) / 2.0
            }
            _ => reads,
        }
    }

    /// Reads of a lookup that passes through the level.
    pub fn absent(&self, design: Design) -> f64 {
        let reads = if design.index { 1.0 } else { 2.0 };
        match design {
            Design { layout: Layout::Leveled, filter: true, .. } => reads * self.filter_passes,
            Design { layout: Layout::Stepped, filter: true, .. } => reads * self.multi_level_passes,
            Design { layout: Layout::Leveled, filter: false, .. } => reads,
            Design { layout: Layout::Stepped, filter: false, .. } => reads * self.growth,
        }
    }

    /// Reads of a scan of one prefix in a level with the part `share` of all rows: one for each run that is opened. With
    /// filters, which know prefixes too, that is a run that holds some of its rows, which came in any order, or that
    /// the filter passes.
    pub fn scan(&self, design: Design, share: f64) -> f64 {
        let reads = if design.index { 1.0 } else { 2.0 };
        let (runs, passes) = match design.layout {
            Layout::Leveled => (1.0, self.filter_passes),
            Layout::Stepped => (self.growth, self.multi_level_passes),
        };
        let holds = 1.0 - (1.0 - (share / runs).min(1.0)).powf(self.prefix_rows);
        let opened = if design.filter { holds + (1.0 - holds) * passes } else { 1.0 };
        reads * runs * opened
    }

    /// Writing a row into the level and, if leveled, again with the rows that come after it.
    pub fn write(&self, design: Design) -> f64 {
        let once = self.write_cost / self.block_rows;
        match design.layout {
            Layout::Leveled => once * self.growth,
            Layout::Stepped => once,
        }
    }
}

/// The shares of operations; they add up to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mix {
    /// Lookups that find their key.
    pub found: f64,
    /// Lookups that do not.
    pub absent: f64,
    /// Writes.
    pub writes: f64,
    /// Scans of one prefix.
    pub scans: f64,
}

impl Mix {
    /// Files are created in directories where they are not: each write follows an absent lookup.
    pub const CREATE: Mix = Mix { found: 0.0, absent: 0.5, writes: 0.5, scans: 0.0 };
    /// Attributes are changed: each write follows a lookup.
    pub const UPDATE: Mix = Mix { found: 0.5, absent: 0.0, writes: 0.5, scans: 0.0 };
    /// Attributes are read.
    pub const STAT: Mix = Mix { found: 1.0, absent: 0.0, writes: 0.0, scans: 0.0 };
    /// A mix of reads and writes.
    pub const MIXED: Mix = Mix { found: 0.5, absent: 0.25, writes: 0.25, scans: 0.0 };

    /// Directories are listed: half scans, and a lookup that finds for each.
    pub const LIST: Mix = Mix { found: 0.5, absent: 0.0, writes: 0.0, scans: 0.5 };

    /// The mix of these many operations; `None` if there are none, or negative ones.
    pub fn of_counts(found: f64, absent: f64, writes: f64, scans: f64) -> Option<Mix> {
        let counts = [found, absent, writes, scans];
        let all: f64 = counts.iter().sum();
        let are_counts = counts.iter().all(|count| *count >= 0.0);
        (are_counts && all > 0.0 && all.is_finite()).then(|| Mix {
            found: found / all,
            absent: absent / all,
            writes: writes / all,
            scans: scans / all,
        })
    }
}

/// A store and what is asked of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// The rows of each level, the newest first.
    pub levels: Vec<f64>,
    /// What is asked.
    pub mix: Mix,
    /// What it costs.
    pub costs: Costs,
}

/// What a plan, a design for each level, comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Bytes of memory.
    pub memory_bytes: f64,
    /// Reads per found lookup.
    pub found: f64,
    /// Reads per absent lookup.
    pub absent: f64,
    /// Cost of a write, in reads.
    pub write: f64,
    /// Reads per scan of a prefix.
    pub scan: f64,
    /// Cost of an operation of the mix, in reads.
    pub total: f64,
}

impl Workload {
    /// Levels that grow by the factor of `costs` from `first` rows on and hold `rows` in all, the last as
    /// many as are left.
    pub fn of_rows(rows: f64, first: f64, mix: Mix, costs: Costs) -> Workload {
        let (mut levels, mut left, mut next) = (Vec::new(), rows.max(1.0), first.max(1.0));
        while left > next && levels.len() < search::LEVELS_MAX - 1 {
            levels.push(next);
            left -= next;
            next *= costs.growth.max(1.5);
        }
        levels.push(left);
        Workload { levels, mix, costs }
    }

    /// What `plan` comes to: the sums of section 5.4.
    ///
    /// REQUIRES: a design for each level.
    pub fn estimate(&self, plan: &[Design]) -> Estimate {
        assert_eq!(plan.len(), self.levels.len(), "a design for each level");
        let (costs, all) = (&self.costs, self.rows());
        let mut estimate = Estimate::default();
        for (&design, &rows) in plan.iter().zip(&self.levels) {
            estimate.memory_bytes += rows * costs.memory_bits(design) / 8.0;
            // Of the level's part of the rows: it is found here, after all levels above denied it.
            estimate.found += rows / all * (costs.found(design) + estimate.absent);
            estimate.absent += costs.absent(design);
            estimate.scan += costs.scan(design, rows / all);
        }
        // The part of the rows that is in the level or came through it.
        let mut reached = 1.0;
        for (&design, &rows) in plan.iter().zip(&self.levels) {
            estimate.write += reached * costs.write(design);
            reached -= rows / all;
        }
        let Mix { found, absent, writes, scans } = self.mix;
        estimate.total = found * estimate.found
            + absent * estimate.absent
            + writes * estimate.write
            + scans * estimate.scan;
        estimate
    }

    /// What `design` adds to the total if `level` has it, and its bytes of memory.
    fn share(&self, level: usize, design: Design) -> (f64, f64) {
        let (costs, all, mix) = (&self.costs, self.rows(), self.mix);
        let rows = self.levels[level];
        let below: f64 = self.levels[level + 1..].iter().sum();
        let found = rows / all * costs.found(design) + below / all * costs.absent(design);
        let write = (rows + below) / all * costs.write(design);
        let scan = mix.scans * costs.scan(design, rows / all);
        let total =
            mix.found * found + mix.absent * costs.absent(design) + mix.writes * write + scan;
        (total, rows * costs.memory_bits(design) / 8.0)
    }

    fn rows(&self) -> f64 {
        self.levels.iter().sum()
    }
}

#[cfg(test)]
mod tests;
