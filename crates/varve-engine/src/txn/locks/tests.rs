//! The table of locks, without a store.

use std::collections::BTreeMap;

use varve_testkit::rng::Rng;
use varve_types::KeyspaceId;

use super::*;
use crate::txn::granules::{key_request, prefix_request, space_request, target};

const SPACE: KeyspaceId = KeyspaceId::new(1);
const ONE: BranchId = BranchId::new(1);
const TWO: BranchId = BranchId::new(2);

fn table() -> LockTable {
    let mut table = LockTable::default();
    table.begin(ONE, 0, false);
    table.begin(TWO, 0, false);
    table
}

fn key(key: &[u8], mode: Mode) -> Request {
    key_request(SPACE, key, mode)
}

#[test]
fn readers_share_and_writers_exclude() {
    let mut table = table();
    assert_eq!(table.request(ONE, &key(b"a", Mode::Shared)), Answer::Granted);
    assert_eq!(table.request(TWO, &key(b"a", Mode::Shared)), Answer::Granted);
    assert!(waits(table.request(TWO, &key(b"a", Mode::Exclusive))));
    assert_eq!(table.request(ONE, &key(b"b", Mode::Exclusive)), Answer::Granted);
    assert!(waits(table.request(TWO, &key(b"b", Mode::Shared))));
    table.end(ONE);
    assert_eq!(table.request(TWO, &key(b"b", Mode::Shared)), Answer::Granted);
    table.end(TWO);
    assert_eq!(table.locks(), 0);
}

#[test]
fn granules_of_all_sizes_meet() {
    let prefix = |prefix: &[u8]| prefix_request(SPACE, prefix, Mode::Shared);
    let mut table = table();
    assert_eq!(table.request(ONE, &prefix(b"12345678")), Answer::Granted);
    let answer = table.request(TWO, &key(b"12345678x", Mode::Exclusive));
    table.stop_waiting(TWO, wait_of(&answer));
    assert_eq!(table.request(TWO, &key(b"12345678x", Mode::Shared)), Answer::Granted);
    assert_eq!(table.request(TWO, &key(b"12345679x", Mode::Exclusive)), Answer::Granted);
    assert!(waits(table.request(ONE, &prefix(b"123"))));
    table.end(TWO);
    assert_eq!(table.request(ONE, &prefix(b"123")), Answer::Granted);
    assert_eq!(table.in_the_way(None, &key(b"zzzzzzzzz", Mode::Exclusive))[..], [ONE]);
}

#[test]
fn of_two_that_wait_for_each_other_the_lower_priority_gives_way() {
    for (give_way, victim) in [([0, 0], TWO), ([1, 0], ONE)] {
        let mut table = LockTable::default();
        table.begin(ONE, give_way[0], false);
        table.begin(TWO, give_way[1], false);
        assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
        assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
        assert!(waits(table.request(ONE, &key(b"b", Mode::Shared))));
        let answer = table.request(TWO, &key(b"a", Mode::Shared));
        let other = if victim == TWO { ONE } else { TWO };
        let why = GaveWay::Deadlock(other);
        assert_eq!(answer, if victim == TWO { Answer::GaveWay(why) } else { Answer::Granted });
        assert_eq!(table.gave_way(victim), Some(why));
        let status = table.status().into_iter().find(|status| status.id == victim).unwrap();
        assert_eq!((status.locks, status.waits_for), (0, vec![]));
    }
}

#[test]
fn a_circle_of_three_is_found() {
    let three = BranchId::new(3);
    let mut table = table();
    table.begin(three, 0, false);
    for (id, name) in [(ONE, b"a"), (TWO, b"b"), (three, b"c")] {
        assert_eq!(table.request(id, &key(name, Mode::Exclusive)), Answer::Granted);
    }
    assert!(waits(table.request(ONE, &key(b"b", Mode::Shared))));
    assert!(waits(table.request(three, &key(b"a", Mode::Shared))));
    assert_eq!(table.request(TWO, &key(b"c", Mode::Shared)), Answer::Granted);
    assert_eq!(table.gave_way(three), Some(GaveWay::Deadlock(ONE)));
}

/// Requests of several threads of one transaction wait beside each other.
#[test]
fn a_request_that_is_granted_leaves_others_waiting() {
    let mut table = table();
    assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
    assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
    assert!(waits(table.request(ONE, &key(b"b", Mode::Shared))));
    assert_eq!(table.request(ONE, &key(b"c", Mode::Shared)), Answer::Granted);
    assert_eq!(table.status()[0].waits_for, [TWO]);
    assert_eq!(
        table.request(TWO, &key(b"a", Mode::Shared)),
        Answer::GaveWay(GaveWay::Deadlock(ONE))
    );
    table.settled(ONE);
    assert!(!table.holds(ONE, &key(b"a", Mode::Shared)), "a write may be on its way past c");
    table.settled(ONE);
    assert!(table.holds(ONE, &key(b"a", Mode::Shared)));
    assert!(!table.holds(ONE, &key(b"c", Mode::Exclusive)));
}

#[test]
fn who_gives_up_a_request_waits_no_more() {
    let mut table = table();
    assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
    assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
    let answer = table.request(ONE, &key(b"b", Mode::Shared));
    table.stop_waiting(ONE, wait_of(&answer));
    assert!(waits(table.request(TWO, &key(b"a", Mode::Shared))));
}

/// Where one of two calls that asked for the same was given up, the other did not count as waiting any more, and a circle that it
/// was on was not found.
#[test]
fn who_gives_up_a_request_leaves_another_for_the_same_waiting() {
    let mut table = table();
    assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
    assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
    let wanted = key(b"b", Mode::Shared);
    let answers = [(); 2].map(|()| table.request(ONE, &wanted));
    table.stop_waiting(ONE, wait_of(&answers[0]));
    let why = GaveWay::Deadlock(ONE);
    assert_eq!(table.request(TWO, &key(b"a", Mode::Shared)), Answer::GaveWay(why));
}

/// What one call of a transaction is granted others of it need not wait for.
#[test]
fn who_is_granted_what_others_of_it_wait_for_waits_only_for_more() {
    let mut table = table();
    assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
    for mode in [Mode::Shared, Mode::Exclusive] {
        assert!(waits(table.request(ONE, &key(b"b", mode))));
    }
    table.end(TWO);
    table.begin(TWO, 0, false);
    assert_eq!(table.request(TWO, &key(b"b", Mode::Shared)), Answer::Granted);
    let left = |table: &LockTable| table.owners[&ONE].waits.len();
    assert_eq!(table.request(ONE, &key(b"b", Mode::Shared)), Answer::Granted);
    assert_eq!(left(&table), 1);
    table.end(TWO);
    assert_eq!(table.request(ONE, &key(b"b", Mode::Exclusive)), Answer::Granted);
    assert_eq!(left(&table), 0);
}

#[test]
fn who_restarts_waits_for_nobody() {
    let three = BranchId::new(3);
    let mut table = table();
    table.begin(three, 0, true);
    assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
    assert_eq!(table.request(three, &key(b"b", Mode::Exclusive)), Answer::Granted);
    let why = GaveWay::Restart(ONE);
    assert_eq!(table.request(three, &key(b"a", Mode::Shared)), Answer::GaveWay(why));
    assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
}

/// Others wait for who is being committed, and whom it waited for itself is no matter any more.
#[test]
fn who_is_being_committed_keeps_its_locks_and_waits_for_nobody() {
    let mut table = table();
    assert_eq!(table.request(ONE, &key(b"a", Mode::Exclusive)), Answer::Granted);
    assert_eq!(table.request(TWO, &key(b"b", Mode::Exclusive)), Answer::Granted);
    assert!(waits(table.request(TWO, &key(b"a", Mode::Shared))));
    assert_eq!(table.keep(TWO), None);
    table.overrule(TWO, GaveWay::Overruled);
    let answer = table.request(ONE, &key(b"b", Mode::Shared));
    assert!(waits(answer.clone()), "no circle, whoever would give way");
    table.stop_waiting(ONE, wait_of(&answer));
    table.keep_no_more(TWO);
    table.overrule(TWO, GaveWay::Committed(ONE));
    assert_eq!(table.keep(TWO), Some(GaveWay::Committed(ONE)));
    assert_eq!(table.request(ONE, &key(b"b", Mode::Shared)), Answer::Granted);
    [ONE, TWO].into_iter().for_each(|id| table.end(id));
    assert_eq!(table.locks(), 0);
}

fn waits(answer: Answer) -> bool {
    matches!(answer, Answer::Wait(..))
}

fn wait_of(answer: &Answer) -> u64 {
    match answer {
        Answer::Wait(wait, _) => *wait,
        other => panic!("{other:?}"),
    }
}

/// Sixteen keys of a prefix, and more, become one lock of it, unless others have locked something in it.
#[test]
fn many_keys_of_a_prefix_are_gathered_where_nobody_is_in_the_way() {
    let mut table = table();
    let name = |prefix: u8, n: u64| [&[prefix; 8][..], &n.to_be_bytes()].concat();
    let wants = |table: &mut LockTable, id, prefix, n, mode| {
        let request = key(&name(prefix, n), mode);
        let answer = table.request(id, &request);
        match answer {
            Answer::Granted => table.settled(id),
            _ => table.stop_waiting(id, wait_of(&answer)),
        }
        answer
    };
    for n in 0..5000 {
        for (prefix, mode) in [(1, Mode::Shared), (2, Mode::Exclusive), (3, Mode::Shared)] {
            assert_eq!(wants(&mut table, ONE, prefix, n, mode), Answer::Granted);
        }
        if n == 10 {
            assert!(!table.gather(ONE), "too few to be worth while");
        }
    }
    assert_eq!(wants(&mut table, TWO, 1, 9999, Mode::Exclusive), Answer::Granted);
    assert_eq!(wants(&mut table, TWO, 3, 9999, Mode::Shared), Answer::Granted);
    assert_eq!(table.locks(), 4 + 15_000 + 5);
    assert!(table.gather(ONE));
    assert!(!table.holds(ONE, &key(&name(2, 1), Mode::Exclusive)), "a write may be on its way");
    table.settled(ONE);
    assert_eq!(table.locks(), 4 + 5000 + 5);
    for n in [0, 4999, 5000] {
        assert!(table.holds(ONE, &key(&name(2, n), Mode::Exclusive)));
        assert!(waits(wants(&mut table, TWO, 2, n, Mode::Shared)));
        assert_eq!(wants(&mut table, TWO, 3, n, Mode::Shared), Answer::Granted);
        assert!(waits(wants(&mut table, TWO, 3, n, Mode::Exclusive)));
    }
    assert!(!table.gather(ONE), "it has hardly more than before");
    assert!(waits(wants(&mut table, TWO, 1, 0, Mode::Exclusive)));
    assert_eq!(wants(&mut table, TWO, 1, 5000, Mode::Exclusive), Answer::Granted);
    table.end(ONE);
    for prefix in 1..4 {
        assert_eq!(wants(&mut table, TWO, prefix, 0, Mode::Exclusive), Answer::Granted);
    }
    table.end(TWO);
    assert_eq!((table.locks(), table.granted.len()), (0, 0));
}

/// Keys of a prefix that is kept apart stay keys, however many.
#[test]
fn prefixes_that_are_kept_apart_are_not_gathered() {
    let mut table = table();
    let name = |prefix: u8, n: u64| [&[prefix; 8][..], &n.to_be_bytes()].concat();
    let granule = |prefix: u8| target(&prefix_request(SPACE, &[prefix; 8], Mode::Shared));
    table.keep_apart(ONE, vec![granule(1)]);
    assert!(table.is_apart(ONE, granule(1)) && !table.is_apart(ONE, granule(2)));
    for (prefix, n) in (0..5000).flat_map(|n| [(1, n), (2, n)]) {
        let request = key(&name(prefix, n), Mode::Exclusive);
        assert_eq!(table.request(ONE, &request), Answer::Granted);
    }
    assert!(table.gather(ONE));
    assert_eq!(table.locks(), 3 + 5000);
    assert_eq!(table.request(TWO, &key(&name(1, 5000), Mode::Exclusive)), Answer::Granted);
    assert!(waits(table.request(TWO, &key(&name(2, 5000), Mode::Exclusive))));
}

/// Whatever is gathered when: nobody gets what another has been granted and not given back.
#[test]
fn what_is_granted_stays_granted_when_locks_are_gathered() {
    let mut gathered = 0;
    for seed in 0..20 {
        let (mut rng, mut table) = (Rng::new(seed), LockTable::default());
        let ids: Vec<BranchId> = (1..4).map(BranchId::new).collect();
        let mut known: BTreeMap<BranchId, BTreeMap<Vec<u8>, bool>> = BTreeMap::new();
        ids.iter().for_each(|id| drop(table.begin(*id, 0, false)));
        for step in 0..4000 {
            let id = *rng.pick(&ids);
            // Each is mostly at work in a directory of its own.
            let dir = if rng.chance(10) { rng.below(4) } else { 10 + id.get() };
            let name = [dir.to_be_bytes(), rng.below(60).to_be_bytes()].concat();
            let is_write = rng.chance(40);
            let mode = if is_write { Mode::Exclusive } else { Mode::Shared };
            let request = match rng.below(200) {
                0 => prefix_request(SPACE, &name, Mode::Shared),
                1 => space_request(SPACE, Mode::Shared),
                _ => key(&name, mode),
            };
            let others = known.iter().filter(|(other, _)| **other != id);
            let excluded = others.flat_map(|(_, locked)| locked.get(&name)).any(|w| *w || is_write);
            match table.request(id, &request) {
                Answer::Granted if request.len() == 3 => {
                    assert!(!excluded, "{name:?} is granted to two");
                    *known.entry(id).or_default().entry(name).or_default() |= is_write;
                }
                Answer::Wait(wait, _) => table.stop_waiting(id, wait),
                _ => {}
            }
            if rng.chance(3) {
                table.owners.get_mut(&id).unwrap().gather_at = 0;
                gathered += u32::from(table.gather(id));
            }
            if rng.chance(1) {
                table.end(id);
                known.remove(&id);
                table.begin(id, 0, false);
            }
            let looked_at = if step % 20 == 0 { &known } else { &BTreeMap::new() };
            for (id, locked) in looked_at {
                table.owners.get_mut(id).unwrap().settling = 0;
                for (name, is_write) in locked {
                    let mode = if *is_write { Mode::Exclusive } else { Mode::Shared };
                    assert!(table.holds(*id, &key(name, mode)), "{name:?} is lost");
                }
            }
            let granted: usize = table.granted.values().map(|holders| holders.len()).sum();
            assert_eq!(table.locks(), granted);
        }
    }
    assert!(gathered > 100, "{gathered}");
}
