//! A store whose design is changed again and again, each preset after each other one, while branches and snapshots are
//! alive: all of them keep their rows, compactions write tables of the new design as they pass, and who asks has all of
//! them so at once.

use std::collections::BTreeSet;
use std::path::PathBuf;

use varve_engine::{StoreDesign, inspect_store};

use crate::branches::World;
use crate::common::*;
use crate::designs::{PRESETS, options_of};
use crate::redesign::{assert_is_of, finish};

/// A way from each preset to each other one.
fn walk() -> Vec<(&'static str, StoreDesign)> {
    let all = 0..PRESETS.len();
    let pairs = all.flat_map(|from| (from + 1..PRESETS.len()).map(move |to| (from, to)));
    let forth_and_back = pairs.flat_map(|(from, to)| [PRESETS[from], PRESETS[to]]);
    forth_and_back.chain([PRESETS[0]]).collect()
}

/// How many tables have the filters of `design`, and how many there are.
fn tables_of(world: &World, design: StoreDesign) -> [usize; 2] {
    let report = inspect_store(&*world.env, &store_dir()).unwrap();
    let kind = format!("{:?}", options_of(design).filter.kind()).to_lowercase();
    let parts = report.tables().filter_map(|table| table.parts.as_ref());
    let is_of: Vec<bool> = parts.map(|parts| parts.filter == kind).collect();
    [is_of.iter().filter(|is_of| **is_of).count(), is_of.len()]
}

#[test]
fn a_store_becomes_every_preset_after_every_other_with_branches_alive() {
    let (mut before, first) = PRESETS[0];
    let (mut world, mut rng) = (World::new(Designs::Always(first), 21), Rng::new(21));
    let mut changes = BTreeSet::new();
    let (mut alive, mut old, mut new, mut all) = ([0; 2], 0, 0, 0);
    for (step, (name, design)) in walk().into_iter().enumerate() {
        let when = format!("change {step}, from {before} to {name}");
        world.run(&mut rng, 150);
        let (row, outside) = table_of_the_design_before(&world, &mut rng);
        world.designs = Designs::Always(design);
        world.reopen(&mut rng);
        world.db().ingest(std::slice::from_ref(&outside)).unwrap();
        world.env.remove_raw(&outside).unwrap();
        world.note(0, vec![row]);
        let counts = world.check_all(&when);
        alive.iter_mut().zip(counts).for_each(|(sum, count)| *sum += usize::from(count > 0));
        if step % 2 == 0 {
            finish(world.db());
            assert_is_of(&world.env, design, &when);
        } else {
            let [of_design, tables] = tables_of(&world, design);
            old += tables - of_design;
            world.run(&mut rng, 150);
            let [of_design, tables] = tables_of(&world, design);
            (new, all) = (new + of_design, all + tables);
        }
        world.check_all(&when);
        changes.insert((before, name));
        before = name;
    }
    changes.retain(|(before, name)| before != name);
    assert_eq!(changes.len(), PRESETS.len() * (PRESETS.len() - 1));
    assert!(alive.iter().all(|times| *times > 20), "branches and snapshots at {alive:?} changes");
    assert!(old > 200 && new * 4 > all * 3, "{old} of another design, then {new} of {all} of it");
}

/// A table with one row, which is built by the store as it is now.
fn table_of_the_design_before(world: &World, rng: &mut Rng) -> (ModelOp, PathBuf) {
    let row = ModelOp { space: 0, key: random_key(rng, 0), value: Some(vec![7; 50]) };
    let path = PathBuf::from("/outside.table");
    let mut table = world.db().table_file(world.ids[0], &path).unwrap();
    table.add(&row.key, row.value.as_deref()).unwrap();
    table.finish().unwrap();
    (row, path)
}
