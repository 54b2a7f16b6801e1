//! What is asked of file systems, in parts of all operations, as it was published.

use varve_trace::Op;

/// A kind of operation that a mix has a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An operation on one object, or on a directory and what is in it.
    Plain(Op),
    /// A rename: within a directory, to one near to it, to one far from it.
    Rename(Reach),
    /// A second name, where the first is, near to it, far from it.
    Link(Reach),
}

/// How far two directories are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Same,
    Near,
    Far,
}

/// A mix: its name, where it is from, and the weight of each kind.
pub(super) struct Mix {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    pub(super) weights: &'static [(Kind, f64)],
}

use Kind::{Link, Plain, Rename};
use Reach::{Far, Near, Same};

/// The mixes, by name.
pub(super) const MIXES: [Mix; 5] = [
    // The parts of lookups, creations and updates are published, and that 1,874,109 of 145 million operations are renames; how the
    // rest divides is not.
    Mix {
        name: "linkedin",
        source: "Ren, 6.3.2 and table 3.2",
        weights: &[
            (Plain(Op::Open), 60.0),
            (Plain(Op::Getattr), 20.0),
            (Plain(Op::Readdir), 4.0),
            (Plain(Op::Create), 7.5),
            (Plain(Op::Mkdir), 1.5),
            (Plain(Op::Setattr), 3.0),
            (Plain(Op::Unlink), 2.71),
            (Rename(Same), 0.29),
            (Rename(Near), 0.8),
            (Rename(Far), 0.2),
        ],
    },
    Mix {
        name: "specsfs97",
        source: "Sinnamohideen, table 3.1",
        weights: &[
            (Plain(Op::Lookup), 27.0),
            (Plain(Op::Read), 18.0),
            (Plain(Op::Readdir), 18.0),
            (Plain(Op::Getattr), 11.0),
            (Plain(Op::Write), 9.0),
            (Plain(Op::Access), 7.0),
            (Plain(Op::Other), 7.0),
            (Plain(Op::Setattr), 1.0),
            (Plain(Op::Create), 1.0),
            (Plain(Op::Unlink), 1.0),
        ],
    },
    Mix {
        name: "eecs",
        source: "Sinnamohideen, table 3.1",
        weights: &[
            (Plain(Op::Getattr), 16_836_393.0),
            (Plain(Op::Setattr), 5_385_233.0),
            (Plain(Op::Access), 36_554_813.0),
            (Plain(Op::Read), 31_580_501.0),
            (Plain(Op::Write), 18_497_209.0),
            (Plain(Op::Readdir), 1_529_783.0),
            (Plain(Op::Lookup), 50_407_746.0),
            (Plain(Op::Other), 18_822.0),
            (Plain(Op::Create), 1_359_889.0),
            (Plain(Op::Unlink), 1_092_608.0),
            (Plain(Op::Mkdir), 38_835.0),
            (Plain(Op::Rmdir), 39_197.0),
            (Link(Same), 309_589.0),
            (Rename(Same), 90_743.0),
            (Link(Near), 5547.0),
            (Rename(Near), 2176.0),
            (Link(Far), 6.0),
            (Rename(Far), 613.0),
        ],
    },
    Mix {
        name: "deas",
        source: "Sinnamohideen, table 3.1",
        weights: &[
            (Plain(Op::Getattr), 197_103_711.0),
            (Plain(Op::Setattr), 4_429_365.0),
            (Plain(Op::Access), 12_050_877.0),
            (Plain(Op::Read), 409_879_410.0),
            (Plain(Op::Write), 124_319_586.0),
            (Plain(Op::Readdir), 2_641_479.0),
            (Plain(Op::Lookup), 31_838_772.0),
            (Plain(Op::Other), 84_692.0),
            (Plain(Op::Create), 1_931_159.0),
            (Plain(Op::Unlink), 3_280_382.0),
            (Plain(Op::Mkdir), 15_408.0),
            (Plain(Op::Rmdir), 112_824.0),
            (Link(Same), 965_300.0),
            (Rename(Same), 174_406.0),
            (Link(Near), 39_235.0),
            (Rename(Near), 35_887.0),
            (Link(Far), 63.0),
            (Rename(Far), 553.0),
        ],
    },
    Mix {
        name: "campus",
        source: "Sinnamohideen, table 3.1",
        weights: &[
            (Plain(Op::Getattr), 13_475_241.0),
            (Plain(Op::Setattr), 7_649_003.0),
            (Plain(Op::Access), 16_517_405.0),
            (Plain(Op::Read), 383_368_210.0),
            (Plain(Op::Write), 123_753_745.0),
            (Plain(Op::Readdir), 2_257_374.0),
            (Plain(Op::Lookup), 34_876_085.0),
            (Plain(Op::Other), 266_472.0),
            (Plain(Op::Create), 1_496_054.0),
            (Plain(Op::Unlink), 2_897_888.0),
            (Plain(Op::Mkdir), 616.0),
            (Plain(Op::Rmdir), 716.0),
            (Link(Same), 1_422_781.0),
            (Rename(Same), 6132.0),
            (Link(Near), 44_684.0),
            (Rename(Near), 262.0),
            (Rename(Far), 33.0),
        ],
    },
];
