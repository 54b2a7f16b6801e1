use super::*;

#[test]
fn spreads() {
    assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
    assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
    assert_eq!(Spread::of(Vec::new()).max, 0.0);
    assert_eq!(Spread::of(vec![3.0, 1.0, 2.06]).told(1), "2.1 (1.0-3.0)");
}

#[test]
fn workers_add_up() {
    let tally = |ops, seconds| Tally {
        ops,
        names: ops,
        active: Duration::from_secs(seconds),
        cpu: Duration::from_secs(1),
        thread_cpu: Duration::from_secs(1),
        latencies: [("stat".to_owned(), vec![(1000 * seconds, ops)])].into(),
        is_cut: false,
        buckets: vec![ops],
    };
    let tallies = [tally(10, 1), tally(10, 2)];
    let costs = Costs { slab_bytes: 4096, ..Costs::default() };
    let figure = Figure::new(&Phase::warm("x"), &tallies, &costs, None).expect("histogram");
    // While the second one works alone it has the machine to itself.
    assert_eq!((figure.count, figure.per_second, figure.seconds), (20, 10.0, 2.0));
    let stats = &figure.latencies["stat"];
    assert_eq!((figure.client_cpu_us, figure.latencies.len(), stats.len()), (100_000.0, 1, 20));
    assert_eq!((stats.count_at(1000), stats.count_at(2000)), (10, 10));
    assert_eq!(figure.buckets, [20]);
    assert_eq!(figure.memory_bytes(), Some(4096), "the kernel serves");
    let daemon_cpu = Some(Duration::ZERO);
    let served = Figure::new(&Phase::warm("x"), &tallies, &Costs { daemon_cpu, ..costs }, None);
    assert_eq!(served.expect("histogram").memory_bytes(), None, "nobody knows its peak");
    assert!(figure.rates_by(5).iter().all(|rate| (rate - 200.0).abs() < 1e-6));
    assert_eq!(figure.rates_by(5).len(), 4);
    assert!(figure.rates_by(21).is_empty());
}

/// A phase of less than a tenth of a second, and the end of each, counted as a whole tenth.
#[test]
fn the_last_bucket_ends_with_the_phase() {
    let tally = |ms, buckets: &[u64]| Tally {
        ops: buckets.iter().sum(),
        names: buckets.iter().sum(),
        active: Duration::from_millis(ms),
        buckets: buckets.to_vec(),
        ..Tally::default()
    };
    let figure = |ms, buckets: &[u64]| {
        Figure::new(&Phase::warm("x"), &[tally(ms, buckets)], &Costs::default(), None)
            .expect("figure")
    };
    let close = |found: &[f64], expected: &[f64]| {
        assert_eq!(found.len(), expected.len());
        let mut both = found.iter().zip(expected);
        assert!(both.all(|(one, other)| (one - other).abs() < 1e-6), "{found:?}");
    };
    close(&figure(20, &[10]).rates_by(5), &[500.0, 500.0]);
    close(&figure(110, &[10, 10]).rates_by(10), &[100.0, 1000.0]);
    let rates = |figure: &Figure| plots::over_time(figure).into_iter().map(|it| it.1).collect();
    let [short, long]: [Vec<f64>; 2] =
        [figure(20, &[10]), figure(110, &[10, 10])].each_ref().map(rates);
    close(&short, &[500.0]);
    close(&long, &[100.0]);
}

/// Of a target that did not come as far as another, the rates of the other stood in its column.
#[test]
fn a_target_that_came_less_far_leaves_its_column_empty() {
    let targets = ["one", "other"].map(|name| format!("./{name}").parse().expect("a target"));
    let mut report = Report::new(Setup::default(), &targets, vec![Phase::warm("x")]);
    for (target, count) in [(0, 10), (1, 20)] {
        let tally = Tally {
            ops: count,
            names: count,
            active: Duration::from_millis(10),
            buckets: vec![count],
            ..Tally::default()
        };
        let figure =
            Figure::new(&Phase::warm("x"), &[tally], &Costs::default(), None).expect("figure");
        report.add(target, vec![figure], Facts::default());
    }
    let rows = report.steps(0, 10);
    assert_eq!(rows[0], ["operations", "./one", "./other"]);
    assert_eq!(rows[1..], [["10", "1000", "2000"], ["20", "-", "2000"]]);
}
