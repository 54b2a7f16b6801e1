//! The table against a model that knows nothing but bytes, and a finder of circles that tries every way.

use std::collections::{BTreeMap, BTreeSet};

use varve_testkit::rng::Rng;

use super::*;

/// The bytes of a file of the model.
const BYTES: u64 = 10;
const FILES: u64 = 3;

const NO_LIMITS: LockLimits = LockLimits {
    session_locks_max: usize::MAX,
    locks_max: usize::MAX,
    session_waits_max: usize::MAX,
    waits_max: usize::MAX,
};

type ModelOwner = (u32, u64, bool);

#[derive(Clone, Copy, Debug)]
struct Asked {
    ticket: Ticket,
    ino: u64,
    owner: ModelOwner,
    bytes: (u64, u64),
    mode: LockMode,
    finds_circles: bool,
}

/// What each owner has locked of each byte, and by which handle; and the requests in the order in which they came.
#[derive(Default)]
struct Model {
    bytes: BTreeMap<(u64, u64, ModelOwner), (LockMode, u64)>,
    asked: Vec<(Asked, u64)>,
    resolved: Vec<(Ticket, bool)>,
}

impl Model {
    fn blockers(&self, asked: &Asked) -> BTreeSet<ModelOwner> {
        let in_the_way = self.bytes.iter().filter(|((ino, byte, owner), (mode, _))| {
            *ino == asked.ino
                && (asked.bytes.0..=asked.bytes.1).contains(byte)
                && *owner != asked.owner
                && owner.2 == asked.owner.2
                && (*mode == LockMode::Exclusive || asked.mode == LockMode::Exclusive)
        });
        in_the_way.map(|((_, _, owner), _)| *owner).collect()
    }

    /// Who waits for whom, closed over all ways.
    fn waits_for(&self, more: Option<&Asked>) -> BTreeSet<(ModelOwner, ModelOwner)> {
        let asked = self.asked.iter().map(|(asked, _)| asked).chain(more);
        let mut pairs: BTreeSet<_> = asked
            .filter(|asked| asked.finds_circles)
            .flat_map(|asked| self.blockers(asked).into_iter().map(|by| (asked.owner, by)))
            .collect();
        loop {
            let further: Vec<_> = pairs
                .iter()
                .flat_map(|(a, b)| pairs.iter().filter(move |(c, _)| c == b).map(|(_, d)| (*a, *d)))
                .filter(|pair| !pairs.contains(pair))
                .collect();
            if further.is_empty() {
                return pairs;
            }
            pairs.extend(further);
        }
    }

    fn is_in_circle(&self, asked: &Asked) -> bool {
        // Of its owner's requests this one must be on the way.
        let pairs = self.waits_for(None);
        let blockers = self.blockers(asked);
        blockers.iter().any(|by| pairs.contains(&(*by, asked.owner)))
    }

    fn give(&mut self, asked: &Asked, handle: u64) {
        // A lock of one mode is one lock, which belongs to the last handle.
        for byte in asked.bytes.0..=asked.bytes.1 {
            self.bytes.insert((asked.ino, byte, asked.owner), (asked.mode, handle));
        }
        for step in [-1_i64, 1] {
            let mut at = if step < 0 { asked.bytes.0 } else { asked.bytes.1 };
            loop {
                at = at.wrapping_add_signed(step);
                match self.bytes.get_mut(&(asked.ino, at, asked.owner)) {
                    Some((mode, of)) if *mode == asked.mode => *of = handle,
                    _ => break,
                }
            }
        }
        let blocked: Vec<Asked> = self.asked.iter().map(|(asked, _)| *asked).collect();
        let owner_waits =
            blocked.iter().any(|other| other.owner == asked.owner && other.finds_circles);
        for other in blocked {
            let is_blocked = other.ino == asked.ino && other.finds_circles && owner_waits;
            if is_blocked && self.is_in_circle(&other) {
                self.asked.retain(|(one, _)| one.ticket != other.ticket);
                self.resolved.push((other.ticket, false));
            }
        }
    }

    fn serve(&mut self, ino: u64) {
        while let Some(at) = self
            .asked
            .iter()
            .position(|(asked, _)| asked.ino == ino && self.blockers(asked).is_empty())
        {
            let (asked, handle) = self.asked.remove(at);
            self.give(&asked, handle);
            self.resolved.push((asked.ticket, true));
        }
    }

    /// True if the lock is held now.
    fn set(&mut self, asked: &Asked, handle: u64) -> bool {
        if asked.owner.2
            && self.bytes.iter().any(|((ino, _, owner), (mode, _))| {
                (*ino, *owner) == (asked.ino, asked.owner) && *mode != asked.mode
            })
        {
            self.bytes.retain(|(ino, _, owner), _| (*ino, *owner) != (asked.ino, asked.owner));
        }
        let is_free = self.blockers(asked).is_empty();
        if is_free {
            self.give(asked, handle);
        }
        self.serve(asked.ino);
        is_free
    }

    fn drop(&mut self, ino: u64, goes: impl Fn(u64, &ModelOwner, u64) -> bool) {
        self.bytes
            .retain(|(of, byte, owner), (_, handle)| *of != ino || !goes(*byte, owner, *handle));
        self.serve(ino);
    }
}

/// The table and the model, to which the same happens.
struct Both {
    rng: Rng,
    table: LockTable,
    model: Model,
    /// Deadlocks, requests that were queued, those that were granted, and those that became deadlocks.
    seen: [usize; 4],
}

/// What one step is about.
struct Drawn {
    id: InodeId,
    handle: Handle,
    lock: FileLock,
    asked: Asked,
}

impl Both {
    fn draw(&mut self) -> Drawn {
        const POSIX: LockKind = LockKind::Posix;
        let rng = &mut self.rng;
        let (ino, session) = (rng.below(FILES), rng.below(3) as u32);
        let kind = *rng.pick(&[POSIX, POSIX, POSIX, LockKind::OpenFile, LockKind::Flock]);
        // Processes have the first numbers, open files the others.
        let number = rng.below(2) + if kind == POSIX { 0 } else { 10 };
        let mode = *rng.pick(&[LockMode::Shared, LockMode::Exclusive]);
        let first = rng.below(BYTES);
        let (bytes, range) = match kind {
            LockKind::Flock => ((0, BYTES - 1), LockRange::ALL),
            _ => {
                let last = rng.between(first, BYTES);
                ((first, last), LockRange::new(first, last).unwrap())
            }
        };
        let handle = Handle(if kind == POSIX { rng.below(3) } else { number });
        let lock = FileLock { owner: LockOwner(number), kind, mode, range, pid: 7 };
        let owner = (session, number, kind == LockKind::Flock);
        let asked =
            Asked { ticket: Ticket(0), ino, owner, bytes, mode, finds_circles: kind == POSIX };
        Drawn { id: InodeId::new(ino + 100), handle, lock, asked }
    }

    /// Does one random thing to both.
    fn step(&mut self) -> Result<(), String> {
        let drawn = self.draw();
        let Drawn { id, handle, lock, asked: Asked { ino, owner, bytes, .. } } = drawn;
        let (session, table, model) = (SessionId(owner.0), &mut self.table, &mut self.model);
        match self.rng.below(100) {
            0..25 => {
                let is_free = model.blockers(&drawn.asked).is_empty();
                if table.test(id, session, lock).is_none() != is_free {
                    return Err("test".to_owned());
                }
                let is_set = table.set(id, session, handle, lock).is_ok();
                if is_set != model.set(&drawn.asked, handle.0) {
                    return Err("set".to_owned());
                }
            }
            25..60 => self.wait(drawn)?,
            60..80 => {
                table.unlock(id, session, (lock.owner, lock.kind), lock.range).unwrap();
                model.drop(ino, |byte, of, _| *of == owner && (bytes.0..=bytes.1).contains(&byte));
            }
            80..88 => {
                table.close(id, session, lock.owner);
                model.drop(ino, |_, of, _| *of == (owner.0, owner.1, false));
            }
            88..92 => {
                table.release(id, session, handle);
                model.drop(ino, |_, of, by| of.0 == owner.0 && by == handle.0);
            }
            92..98 if !model.asked.is_empty() => {
                let at = self.rng.below(model.asked.len() as u64) as usize;
                let (asked, _) = model.asked.remove(at);
                assert!(table.cancel(asked.ticket) && !table.cancel(asked.ticket));
            }
            _ => {
                table.end_session(session);
                model.asked.retain(|(asked, _)| asked.owner.0 != owner.0);
                (0..FILES).for_each(|ino| model.drop(ino, |_, of, _| of.0 == owner.0));
            }
        }
        Ok(())
    }

    fn wait(&mut self, drawn: Drawn) -> Result<(), String> {
        let Drawn { id, handle, lock, mut asked } = drawn;
        let waits = self.table.wait(id, SessionId(asked.owner.0), handle, lock);
        let is_set = self.model.set(&asked, handle.0);
        let pairs = self.model.waits_for(Some(&asked));
        let closes = |by| pairs.contains(&(by, asked.owner));
        let is_circle = asked.finds_circles && self.model.blockers(&asked).into_iter().any(closes);
        match waits {
            Ok(Requested::Granted) if is_set => {}
            Err(LockRefusal::Deadlock) if !is_set && is_circle => self.seen[0] += 1,
            Ok(Requested::Queued(ticket)) if !is_set && !is_circle => {
                asked.ticket = ticket;
                self.model.asked.push((asked, handle.0));
                self.seen[1] += 1;
            }
            other => return Err(format!("{other:?}, held {is_set}, circle {is_circle}")),
        }
        Ok(())
    }

    /// Compares how waits have ended, and what is held.
    fn compare(&mut self) -> Result<(), String> {
        let resolved = self.table.resolved().into_iter();
        let resolved: Vec<_> = resolved.map(|it| (it.ticket, it.result.is_ok())).collect();
        for (_, is_held) in &resolved {
            self.seen[if *is_held { 2 } else { 3 }] += 1;
        }
        let expected = std::mem::take(&mut self.model.resolved);
        if resolved != expected {
            return Err(format!("resolved {resolved:?}, not {expected:?}"));
        }
        self.table.check()?;
        compare(&self.table, &self.model)
    }
}

/// Does `steps` random things to the table and the model. The error says where they differ.
fn differs(seed: u64, steps: usize, planted: Option<Planted>) -> Result<[usize; 4], String> {
    let (rng, mut table) = (Rng::new(seed), LockTable::new(NO_LIMITS));
    table.planted = planted;
    let mut both = Both { rng, table, model: Model::default(), seen: [0; 4] };
    for step in 0..steps {
        let done = both.step().and_then(|()| both.compare());
        done.map_err(|why| format!("seed {seed}, step {step}: {why}"))?;
    }
    Ok(both.seen)
}

fn compare(table: &LockTable, model: &Model) -> Result<(), String> {
    let mut bytes = BTreeMap::new();
    for (ino, inode) in &table.inodes {
        for held in &inode.held {
            let (owner, range) = (held.owner(), held.lock.range);
            let key = (owner.session.0, owner.number.0, owner.is_flock);
            for byte in range.first()..=range.last().min(BYTES - 1) {
                bytes.insert((ino.get() - 100, byte, key), (held.lock.mode, held.handle.0));
            }
        }
    }
    if bytes != model.bytes {
        let differing = bytes.iter().find(|(at, held)| model.bytes.get(at) != Some(held));
        return Err(format!("{differing:?} in the table, or a byte more in the model"));
    }
    let circle = model.waits_for(None).into_iter().find(|(a, b)| a == b);
    match circle {
        Some(circle) => Err(format!("a circle is left: {circle:?}")),
        None => Ok(()),
    }
}

impl LockTable {
    /// The invariants at the head of the module, except that of circles.
    fn check(&self) -> Result<(), String> {
        let mut counts: BTreeMap<SessionId, BTreeMap<InodeId, usize>> = BTreeMap::new();
        let mut queued = 0;
        for (ino, inode) in &self.inodes {
            if inode.held.is_empty() && inode.queue.is_empty() {
                return Err(format!("{ino} has nothing"));
            }
            for (at, one) in inode.held.iter().enumerate() {
                *counts.entry(one.session).or_default().entry(*ino).or_default() += 1;
                for other in &inode.held[at + 1..] {
                    let is_one = one.owner() == other.owner()
                        && (one.lock.range.overlaps(other.lock.range)
                            || one.lock.mode == other.lock.mode
                                && one.lock.range.touches(other.lock.range));
                    if one.excludes(other) || is_one {
                        return Err(format!("{one:?} beside {other:?}"));
                    }
                }
            }
            for ticket in &inode.queue {
                let wait = self.waits.get(ticket).ok_or("a ticket without a wait")?;
                if wait.ino != *ino || inode.in_the_way(&wait.wanted).next().is_none() {
                    return Err(format!("{ticket:?} waits for nothing"));
                }
                queued += 1;
            }
        }
        let own: BTreeMap<_, _> = self
            .sessions
            .iter()
            .filter(|(_, counts)| counts.locks > 0)
            .map(|(session, counts)| (*session, counts.inodes.clone()))
            .collect();
        let locks: usize = counts.values().flat_map(BTreeMap::values).sum();
        let of_sessions: usize = self.sessions.values().map(|counts| counts.locks).sum();
        let waits: usize = self.sessions.values().map(|counts| counts.waits.len()).sum();
        let of_processes: usize = self.waits_of.values().map(Vec::len).sum();
        let posix = self.waits.values().filter(|it| it.wanted.lock.kind == LockKind::Posix).count();
        let right = own == counts
            && [self.locks, of_sessions] == [locks; 2]
            && [self.waits.len(), waits] == [queued; 2]
            && of_processes == posix;
        right.then_some(()).ok_or_else(|| "counts differ".to_owned())
    }
}

#[test]
fn the_table_does_what_a_model_of_bytes_does() {
    let mut seen = [0; 4];
    for seed in 0..100 {
        let more = differs(seed, 300, None).unwrap_or_else(|why| panic!("{why}"));
        (0..4).for_each(|at| seen[at] += more[at]);
    }
    println!("deadlocks, queued, granted later, deadlocks later: {seen:?}");
    assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
}

#[test]
fn the_model_finds_planted_faults() {
    for planted in
        [Planted::DropsTheEnd, Planted::LastFirst, Planted::ShortCircles, Planted::TrustsGrants]
    {
        let found = (0..100).find_map(|seed| differs(seed, 300, Some(planted)).err());
        println!("{planted:?}: {}", found.expect("the fault is found"));
    }
}

const FILE: InodeId = InodeId::new(100);

fn lock(owner: u64, mode: LockMode, first: u64, last: u64) -> FileLock {
    let range = LockRange::new(first, last).unwrap();
    FileLock { owner: LockOwner(owner), kind: LockKind::Posix, mode, range, pid: 7 }
}

#[test]
fn ranges_reach_to_the_largest_offset() {
    let mut table = LockTable::new(NO_LIMITS);
    let (one, max) = (SessionId(1), LockRange::LAST_MAX);
    for (first, last) in [(max, max), (0, 0), (5, max - 1), (1, 4)] {
        table.set(FILE, one, Handle(1), lock(1, LockMode::Shared, first, last)).unwrap();
        table.check().unwrap();
    }
    let held: Vec<_> = table.locks_of(one).collect();
    assert_eq!(held.len(), 1);
    assert_eq!((held[0].0, held[0].1.lock.range), (FILE, LockRange::ALL));
    table.unlock(FILE, one, (LockOwner(1), LockKind::Posix), LockRange::ALL).unwrap();
    assert_eq!((table.counts(), table.inodes.len(), table.sessions.len()), ((0, 0), 0, 0));
    assert_eq!(LockRange::new(0, max + 1), None);
    assert_eq!(LockRange::new(2, 1), None);
}

#[test]
fn what_is_in_the_way_is_named_with_its_process() {
    let mut table = LockTable::new(NO_LIMITS);
    for (owner, first) in [(1, 50), (2, 10), (3, 30)] {
        let held = lock(owner, LockMode::Exclusive, first, first + 9);
        table.set(FILE, SessionId(1), Handle(owner), held).unwrap();
    }
    let wanted = lock(1, LockMode::Shared, 15, 60);
    let found = table.test(FILE, SessionId(2), wanted).unwrap();
    assert_eq!((found.lock.owner, found.lock.pid), (LockOwner(2), 7), "the first in the file");
    let own = table.test(FILE, SessionId(1), wanted).unwrap();
    assert_eq!(own.lock.owner, LockOwner(2), "another session's owner of this number is another");
    assert_eq!(table.test(FILE, SessionId(2), lock(1, LockMode::Shared, 60, 90)), None);
}

#[test]
fn locks_and_waits_are_bounded_for_each_session_and_for_all() {
    let mut table = LockTable::new(LockLimits {
        session_locks_max: 2,
        locks_max: 3,
        session_waits_max: 1,
        waits_max: 2,
    });
    let set = |table: &mut LockTable, session: u32, first: u64| {
        let wanted = lock(1, LockMode::Exclusive, first, first);
        table.set(FILE, SessionId(session), Handle(1), wanted)
    };
    set(&mut table, 1, 0).unwrap();
    set(&mut table, 1, 2).unwrap();
    assert_eq!(set(&mut table, 1, 4), Err(LockRefusal::TooMany));
    set(&mut table, 1, 1).unwrap();
    assert_eq!(table.counts().0, 1, "three neighbours are one");
    let posix = (LockOwner(1), LockKind::Posix);
    table.unlock(FILE, SessionId(1), posix, LockRange::new(1, 1).unwrap()).unwrap();
    set(&mut table, 2, 10).unwrap();
    assert_eq!(set(&mut table, 3, 20), Err(LockRefusal::TooMany), "of all sessions");
    let wait = |table: &mut LockTable, session: u32, owner: u64| {
        let wanted = lock(owner, LockMode::Exclusive, 0, 30);
        table.wait(FILE, SessionId(session), Handle(1), wanted)
    };
    assert!(matches!(wait(&mut table, 3, 1), Ok(Requested::Queued(_))));
    assert_eq!(wait(&mut table, 3, 2), Err(LockRefusal::TooMany));
    assert!(matches!(wait(&mut table, 4, 1), Ok(Requested::Queued(_))));
    assert_eq!(wait(&mut table, 5, 1), Err(LockRefusal::TooMany), "of all sessions");
    assert!(!table.sessions.contains_key(&SessionId(5)));
    table.check().unwrap();
}

#[test]
fn the_end_of_a_session_lets_others_go_on() {
    let mut table = LockTable::new(NO_LIMITS);
    let exclusive = |owner| lock(owner, LockMode::Exclusive, 0, 9);
    table.set(FILE, SessionId(1), Handle(1), exclusive(1)).unwrap();
    let wait = |table: &mut LockTable, session| match table.wait(
        FILE,
        SessionId(session),
        Handle(1),
        exclusive(1),
    ) {
        Ok(Requested::Queued(ticket)) => ticket,
        other => panic!("{other:?}"),
    };
    let (second, third) = (wait(&mut table, 2), wait(&mut table, 3));
    // Its request goes without an answer, and the lock of the first goes to the one that came after it.
    table.end_session(SessionId(2));
    assert_eq!(table.resolved(), []);
    table.end_session(SessionId(1));
    assert_eq!(
        table.resolved(),
        [Resolved { ticket: third, session: SessionId(3), result: Ok(()) }]
    );
    assert!(!table.cancel(second) && !table.cancel(third));
    assert_eq!(table.locks_of(SessionId(3)).count(), 1);
    table.end_session(SessionId(3));
    assert_eq!((table.counts(), table.inodes.len(), table.sessions.len()), ((0, 0), 0, 0));
}

#[test]
fn open_files_that_wait_for_each_other_are_no_deadlock() {
    for (kind, is_deadlock) in [(LockKind::Posix, true), (LockKind::OpenFile, false)] {
        let mut table = LockTable::new(NO_LIMITS);
        let of = |owner, first| FileLock { kind, ..lock(owner, LockMode::Exclusive, first, first) };
        for owner in 0..5 {
            table.set(FILE, SessionId(owner as u32), Handle(owner), of(owner, owner)).unwrap();
        }
        for owner in 0..4 {
            let waits =
                table.wait(FILE, SessionId(owner as u32), Handle(owner), of(owner, owner + 1));
            assert!(matches!(waits, Ok(Requested::Queued(_))));
        }
        let last = table.wait(FILE, SessionId(4), Handle(4), of(4, 0));
        assert_eq!(last == Err(LockRefusal::Deadlock), is_deadlock, "{last:?}");
        table.check().unwrap();
    }
}
