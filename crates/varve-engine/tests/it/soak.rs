//! Random combinations of policies for as long as one likes: the store against its model, with branches and snapshots,
//! crashed and damaged, seed by seed.

use crate::common::*;
use crate::designs::PRESETS;
use crate::{branch_crash, branches, crash, damage, oracle, single_faults};

/// Combinations that are drawn; every fourth time one of the presets.
fn designs_of(seed: u64) -> Designs {
    match seed % 4 {
        3 => Designs::Always(PRESETS[(seed / 4) as usize % PRESETS.len()].1),
        _ => Designs::Drawn,
    }
}

/// Whatever there is, with one seed.
fn everything(seed: u64) {
    let designs = designs_of(seed);
    oracle::run_on_sim(designs, seed, 2500);
    let (mut world, mut rng) = (branches::World::new(designs, seed), Rng::new(seed));
    world.run(&mut rng, 1500);
    world.check_all("at the end");
    crash::crash_everywhere(designs, seed, 97, false).unwrap();
    branch_crash::crash_everywhere(designs, seed, 211, false).unwrap();
    damage::flip_bits(designs, seed, 8);
    single_faults::try_faults(designs, seed, 24);
}

#[test]
#[ignore = "takes as long as it is told"]
fn soak() {
    let told = varve_testkit::soak(|seed| {
        println!(
            "seed {seed}; to see it again: VARVE_SOAK_SEED={seed} VARVE_SOAK_SECONDS=0 cargo test \
             -p varve-engine --test it -- --ignored --exact soak::soak --nocapture"
        );
        everything(seed);
    });
    println!("{told}");
}
