use super::*;
use crate::op::{Is, Listing};
use crate::place::Kernel;

fn measured(
    place: &dyn Place,
    ops: impl Iterator<Item = Op>,
    tempo: Tempo,
) -> Result<Tally, Failure> {
    measure(place, Box::new(ops), tempo, || Ok(Instant::now()))
}

fn every(interval: Duration) -> Tempo {
    Tempo { interval: Some(interval), ..Tempo::default() }
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let place = Kernel::new(dir.path()).expect("directory opens");
    let ops = (0..50).map(|at| Op::MakeDir(format!("d{at}")));
    let tally = measured(&place, ops, every(Duration::from_millis(1))).expect("phase");
    assert_eq!((tally.ops, tally.names), (50, 50));
    assert!(tally.active >= Duration::from_millis(49));
    assert_eq!(tally.buckets.iter().sum::<u64>(), 50);
    assert_eq!(tally.latencies["mkdir"].iter().map(|(_, count)| count).sum::<u64>(), 50);
}

#[test]
fn lateness_is_what_operations_before_have_left() {
    let ms = Duration::from_millis;
    let mut pace = Pace::of(&every(ms(10))).expect("a rate");
    let latencies = [25, 1, 1, 1, 12, 3].map(|took| pace.latency(ms(took)));
    assert_eq!(latencies, [25, 16, 7, 1, 12, 5].map(ms));
}

/// Every 1024 operations the open loop began anew, as if nothing were late.
#[test]
fn a_backlog_outlasts_a_batch() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let place = Kernel::new(dir.path()).expect("directory opens");
    let slow = std::iter::once(Op::Run("sleep 0.5".to_owned()));
    let quick = (0..2 * BATCH).map(|at| Op::MakeDir(format!("d{at}")));
    let tempo = every(Duration::from_micros(100));
    let tally = measured(&place, slow.chain(quick), tempo).expect("phase");
    // The last one is due 0.2 seconds after the first.
    let late = |kind: &str| {
        let late = tally.latencies[kind].iter().filter(|(nanos, _)| *nanos > 200_000_000);
        late.map(|(_, count)| count).sum::<u64>()
    };
    assert_eq!(tally.ops, 2 * BATCH as u64 + 1);
    assert_eq!((late("run"), late("mkdir")), (1, 2 * BATCH as u64));
}

#[test]
fn names_are_counted_where_directories_are_listed() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let make = |at| std::fs::write(dir.path().join(format!("f{at}")), "").expect("a file");
    (0..30).for_each(make);
    let place = Kernel::new(dir.path()).expect("directory opens");
    let list = || Op::List(Listing::names(".".to_owned(), 30));
    let ops = (0..4).map(|_| list());
    let tally = measured(&place, ops, Tempo::default()).expect("phase");
    assert_eq!((tally.ops, tally.names, tally.buckets.iter().sum::<u64>()), (4, 120, 120));
}

#[test]
fn no_operation_begins_after_the_limit() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let place = Kernel::new(dir.path()).expect("directory opens");
    let ops = |count| (0..count).map(|_| Op::Run("sleep 0.02".to_owned()));
    let tempo = Tempo { limit: Some(Duration::from_millis(50)), ..Tempo::default() };
    let cut = measured(&place, ops(100), tempo).expect("phase");
    assert!(cut.is_cut && (1..=3).contains(&cut.ops), "{cut:?}");
    let whole = measured(&place, ops(1), tempo).expect("phase");
    assert_eq!((whole.is_cut, whole.ops), (false, 1));
}

/// The clock stood while names were made, whoever had the CPU then, and began when a worker came to run.
#[test]
fn waiting_counts_and_making_names_does_not() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let place = Kernel::new(dir.path()).expect("directory opens");
    let stat = || Op::Stat(".".to_owned(), Is::Dir);
    let wait = Duration::from_millis(50);
    let active = |making: &dyn Fn(), late: Duration| {
        let ops = (0..=BATCH)
            .inspect(|at| {
                if *at == BATCH {
                    making()
                }
            })
            .map(|_| stat());
        let release = || Ok(Instant::now() - late);
        measure(&place, Box::new(ops), Tempo::default(), release).expect("phase").active
    };
    assert!(active(&|| (), wait) >= wait, "all were let go before it came to run");
    assert!(active(&|| std::thread::sleep(wait), Duration::ZERO) >= wait, "others had the CPU");
    let busy = || {
        let begin = cpu_of_this_thread();
        while cpu_of_this_thread() - begin < 2 * wait {}
    };
    let begin = Instant::now();
    let active = active(&busy, Duration::ZERO);
    let others = begin.elapsed().saturating_sub(2 * wait);
    assert!(active <= others, "{active:?}, of which others had {others:?}");
}

#[test]
fn the_first_error_ends_the_phase() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let place = Kernel::new(dir.path()).expect("directory opens");
    let ops = ["a", "a"].map(|name| Op::MakeDir(name.to_owned())).into_iter();
    assert!(measured(&place, ops, Tempo::default()).is_err());
}
