use std::sync::atomic::AtomicBool;

use varve_testkit::eventually;

use super::*;
use crate::readers::policy::tests::policy_of;
use crate::readers::{Placement, Readers, usable_cpus};

/// A share, and what is seen of it look by look.
struct Looks {
    share: Share,
    seen: Seen,
}

impl Looks {
    fn new() -> Looks {
        let now = Instant::now();
        let seen = Seen { now, in_burst: true, has_slack: true, served: 0, was_kept: false };
        Looks { share: Share::new(now), seen }
    }

    /// Whether it gives way from the next look on.
    fn next(&mut self, change: impl FnOnce(&mut Seen)) -> bool {
        self.seen.now += LOOK_TIME;
        change(&mut self.seen);
        let gives_way = self.share.look(&self.seen);
        self.seen.was_kept = false;
        gives_way
    }

    /// For how many looks it does not give way before it does again.
    fn until_it_gives_way(&mut self) -> u32 {
        (0..10_000).find(|_| self.next(|_| {})).unwrap()
    }

    /// It is kept after it gave way for `looks` more, and serves as soon as it has its share.
    fn is_kept_after(&mut self, looks: u32) {
        (0..looks).for_each(|_| assert!(self.next(|_| {})));
        assert!(!self.next(|seen| seen.was_kept = true));
        assert!(!self.next(|seen| seen.served += 1));
    }
}

#[test]
fn a_share_is_given_up_in_bursts_where_there_is_slack() {
    let mut looks = Looks::new();
    assert!(!looks.next(|seen| seen.has_slack = false));
    assert!(!looks.next(|seen| (seen.has_slack, seen.in_burst) = (true, false)));
    assert!(looks.next(|seen| seen.in_burst = true));
    assert!(!looks.next(|seen| seen.has_slack = false));
    assert!(looks.next(|seen| seen.has_slack = true));
    // A burst is taken to last for a while.
    let held = HOLD_TIME.as_millis() / LOOK_TIME.as_millis();
    (0..held).for_each(|_| assert!(looks.next(|seen| seen.in_burst = false)));
    assert!(!looks.next(|_| {}));
    assert!(looks.next(|seen| seen.in_burst = true));
    looks.share.end_burst();
    assert!(looks.next(|_| {}));
}

#[test]
fn who_was_kept_from_serving_pauses_and_others_do_not() {
    let mut looks = Looks::new();
    assert!(looks.next(|_| {}));
    // Was ready, but had nothing to do.
    assert!(!looks.next(|seen| seen.was_kept = true));
    assert!(!looks.next(|_| {}));
    assert_eq!(looks.until_it_gives_way(), 0);
    let pause = |looks: &Looks| looks.share.pause.as_millis() / LOOK_TIME.as_millis();
    looks.is_kept_after(0);
    assert_eq!(pause(&looks), 2 * 5);
    assert_eq!(u128::from(looks.until_it_gives_way()) + 1, pause(&looks));
    for _ in 0..20 {
        looks.is_kept_after(0);
        looks.until_it_gives_way();
    }
    assert_eq!(looks.share.pause, PAUSE_MAX);
    looks.is_kept_after(20);
    assert_eq!(looks.share.pause, PAUSE_MAX / 2);
    for _ in 0..20 {
        looks.until_it_gives_way();
        looks.is_kept_after(20);
    }
    assert_eq!(looks.share.pause, PAUSE_MIN);
}

/// One that serves in bursts gives way, has its share back while something computes on its CPU, and gives way again after.
/// The burst is taken to last, so that it is not what ends, and there to be slack.
#[test]
fn who_is_kept_from_serving_has_its_share_back() {
    let Some(giving) = GivingWay::new() else {
        return varve_testkit::skipped("threads that give way cannot be called back");
    };
    let (readers, cpu) = (Readers::new(Placement::Pinned), usable_cpus()[0]);
    let computes = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The threads end with it, also when an assertion fails.
        let scene = Arc::new(());
        let goes_on = Arc::downgrade(&scene);
        let (sender, receiver) = mpsc::channel();
        let (readers, giving, goes_on) = (&readers, &giving, move || goes_on.strong_count() > 0);
        let computes_on = goes_on.clone();
        scope.spawn(move || {
            assert!(readers.place_on(cpu));
            let counts = giving.join();
            sender.send(gettid()).unwrap();
            while goes_on() {
                counts.beat();
                counts.note_burst();
                // As for the next request.
                std::thread::sleep(Duration::from_micros(50));
            }
            giving.leave(&counts);
        });
        let computes = &computes;
        scope.spawn(move || {
            assert!(readers.place_on(cpu));
            policy::set_own(Policy::Other).unwrap();
            while computes_on() {
                if !computes.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let ring = receiver.recv().unwrap();
        let look = || {
            std::thread::sleep(LOOK_TIME);
            let mut rings = giving.rings.lock();
            rings[0].bursts = u64::MAX;
            rings[0].look(true, Instant::now());
        };
        let comes_to = |wanted| {
            eventually("its policy changes", || {
                look();
                policy_of(ring) == wanted
            });
        };
        comes_to(libc::SCHED_IDLE);
        computes.store(true, Ordering::Relaxed);
        comes_to(libc::SCHED_BATCH);
        eventually("it was found to have been kept from serving", || {
            look();
            giving.rings.lock()[0].share.pause > PAUSE_MIN
        });
        computes.store(false, Ordering::Relaxed);
        comes_to(libc::SCHED_IDLE);
        drop(giving.watch());
        assert_eq!(policy_of(ring), libc::SCHED_BATCH);
        drop(scene);
    });
    assert!(giving.rings.lock().is_empty());
}
