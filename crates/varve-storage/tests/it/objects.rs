//! What [`Objects`] promises, on a real S3 server and on a shared directory.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_storage::{Created, Key, LIST_MAX, Location, LocationOptions, Objects, is_transient};
use varve_testkit::{Proxy, S3Server, at_end, eventually};

pub(crate) fn options(server: &S3Server, endpoint: String) -> LocationOptions {
    let (id, secret) = server.keys();
    let key = Key { id: id.to_owned(), secret: secret.to_owned(), token: None };
    LocationOptions { endpoint: Some(endpoint), key: Some(key), ..LocationOptions::default() }
}

pub(crate) fn open(address: &str, options: &LocationOptions) -> io::Result<Arc<dyn Objects>> {
    let env: Arc<dyn Env> = OsEnv::new();
    Location::parse(address).unwrap().objects(&env, options)
}

fn s3(server: &S3Server, endpoint: String) -> Arc<dyn Objects> {
    open(&format!("s3://{}/a/store", server.bucket()), &options(server, endpoint)).unwrap()
}

/// Runs a test on each kind of storage that is there.
fn on_each(test: impl Fn(Arc<dyn Objects>)) {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("shared://{}/store", dir.path().display());
    test(open(&address, &LocationOptions::default()).unwrap());
    if let Some(server) = S3Server::start() {
        test(s3(&server, server.endpoint()));
    }
}

fn names(objects: &dyn Objects, prefix: &str, after: Option<&str>) -> Vec<String> {
    objects.list(prefix, after).unwrap().into_iter().map(|info| info.name).collect()
}

#[test]
fn objects_are_made_read_listed_and_removed() {
    on_each(|objects| {
        let objects = &*objects;
        let bytes = Bytes::from((0..100_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
        assert!(objects.list("", None).unwrap().is_empty());
        assert_eq!(objects.read("t/1", None).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(objects.create("t/1", bytes.clone()).unwrap(), Created::New);
        assert_eq!(objects.create("t/1", Bytes::from_static(b"x")).unwrap(), Created::Exists);
        assert_eq!(objects.read("t/1", None).unwrap(), bytes);
        objects.replace("t/1", bytes.slice(..10)).unwrap();
        objects.replace("t/2", Bytes::new()).unwrap();
        assert_eq!(objects.read("t/1", None).unwrap(), bytes.slice(..10));
        assert_eq!(objects.read("t/2", None).unwrap(), Bytes::new());
        let listed = objects.list("t/", None).unwrap();
        let listed: Vec<_> = listed.iter().map(|info| (info.name.as_str(), info.bytes)).collect();
        assert_eq!(listed, [("t/1", 10), ("t/2", 0)]);
        objects.remove("t/1").unwrap();
        objects.remove("t/1").unwrap();
        assert_eq!(names(objects, "", None), ["t/2"]);
        assert_eq!(objects.read("t/1", Some(0..0)).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(objects.address().ends_with("/store"));
    });
}

#[test]
fn ranges_end_where_the_object_ends() {
    on_each(|objects| {
        let bytes = Bytes::from_static(b"0123456789");
        objects.create("object", bytes.clone()).unwrap();
        objects.create("empty", Bytes::new()).unwrap();
        let ranges: [Range<u64>; 9] =
            [0..10, 3..7, 5..100, 9..u64::MAX, 10..11, 11..20, 4..4, u64::MAX - 1..u64::MAX, 0..1];
        for range in ranges {
            let (start, end) = (range.start.min(10) as usize, range.end.min(10) as usize);
            let read = objects.read("object", Some(range.clone()));
            assert_eq!(read.unwrap(), bytes.slice(start..end), "{range:?}");
        }
        assert_eq!(objects.read("empty", Some(0..5)).unwrap(), Bytes::new());
    });
}

#[test]
fn of_sixteen_callers_one_creates() {
    on_each(|objects| {
        for round in 0..10 {
            let name = format!("race/{round}");
            let won: Vec<usize> = std::thread::scope(|scope| {
                let callers: Vec<_> = (0..16)
                    .map(|caller| {
                        let (objects, name) = (&objects, &name);
                        scope.spawn(move || {
                            objects.create(name, Bytes::from(vec![caller as u8; 5000]))
                        })
                    })
                    .collect();
                let outcomes = callers.into_iter().map(|caller| caller.join().unwrap().unwrap());
                let won = outcomes.enumerate().filter(|(_, outcome)| *outcome == Created::New);
                won.map(|(caller, _)| caller).collect()
            });
            assert_eq!(won.len(), 1, "{}: winners {won:?}", objects.address());
            assert_eq!(objects.read(&name, None).unwrap(), vec![won[0] as u8; 5000]);
        }
    });
}

#[test]
fn long_listings_come_in_parts() {
    on_each(|objects| {
        // Directories and names sort in another way than by bytes on many servers.
        let name = |number: u32| match number % 5 {
            0 => format!("l/{:04}/x", number - number % 50),
            1 => format!("l/{:04}-x", number - number % 50),
            2 => format!("l/{:04}.x", number - number % 50),
            _ => format!("l/{number:04}"),
        };
        let mut expected: Vec<String> =
            (0..2_500).map(|number| format!("{}{number:05}", name(number))).collect();
        let created = objects.create_all(
            expected.iter().map(|name| (name.clone(), Bytes::from(name.clone()))).collect(),
        );
        assert!(created.into_iter().all(|created| created.unwrap() == Created::New));
        objects.create("k", Bytes::new()).unwrap();
        objects.create("m", Bytes::new()).unwrap();
        expected.sort_unstable();
        let mut found: Vec<String> = Vec::new();
        loop {
            let part = names(&*objects, "l/", found.last().map(String::as_str));
            let is_last = part.len() < LIST_MAX;
            found.extend(part);
            if is_last {
                break;
            }
        }
        assert!(
            found == expected,
            "{}: {} of {} names",
            objects.address(),
            found.len(),
            expected.len()
        );
        let behind = names(&*objects, "", Some("l/2400"));
        let expected_behind = expected.iter().filter(|name| name.as_str() > "l/2400").cloned();
        assert_eq!(behind, expected_behind.chain(["m".to_owned()]).collect::<Vec<_>>());
        let ranges: Vec<(String, Range<u64>)> =
            expected[..50].iter().map(|name| (name.clone(), 2..6)).collect();
        for (read, name) in objects.read_all(&ranges).into_iter().zip(&expected) {
            assert_eq!(read.unwrap(), name.as_bytes()[2..6]);
        }
    });
}

#[test]
fn one_listing_is_one_request() {
    let Some(server) = S3Server::start() else { return };
    let proxy = Proxy::start(server.address(), Duration::ZERO);
    let objects = s3(&server, proxy.endpoint());
    objects.create_all((0..1_200).map(|number| (format!("{number:04}"), Bytes::new())).collect());
    let before = proxy.requests();
    assert_eq!(objects.list("", None).unwrap().len(), LIST_MAX);
    assert_eq!(proxy.requests() - before, 1);
    assert_eq!(objects.list("", Some("0999")).unwrap().len(), 200);
    assert_eq!(proxy.requests() - before, 2);
}

/// What a request to a server ends in that does not want it, and what the error says.
#[test]
fn refusals_say_what_to_do() {
    let Some(server) = S3Server::start() else { return };
    let right = options(&server, server.endpoint());
    let missing = open("s3://no-such-bucket/store", &right).unwrap();
    let expected = format!("there is no bucket `no-such-bucket` at {}", server.endpoint());
    for error in [
        missing.create("a", Bytes::new()).unwrap_err(),
        missing.replace("a", Bytes::new()).unwrap_err(),
        missing.read("a", None).unwrap_err(),
        missing.list("", None).unwrap_err(),
        missing.remove("a").unwrap_err(),
    ] {
        assert!(error.to_string().contains(&expected), "{error}");
        assert!(error.kind() == io::ErrorKind::Other && !is_transient(&error), "{error:?}");
        assert!(error.to_string().starts_with("s3://no-such-bucket/store: cannot "), "{error}");
    }
    let (id, secret) = server.keys();
    for (id, secret) in [(id, "hunter2"), ("nobody", secret)] {
        let key = Key { id: id.to_owned(), secret: secret.to_owned(), token: None };
        let denied = LocationOptions { key: Some(key), ..right.clone() };
        let denied = open(&format!("s3://{}/store", server.bucket()), &denied).unwrap();
        for error in [
            denied.create("a", Bytes::new()).unwrap_err(),
            denied.read("a", None).unwrap_err(),
            denied.list("", None).unwrap_err(),
        ] {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            assert!(!error.to_string().contains(secret), "{error}");
            assert!(!format!("{error:?} {denied:?}").contains(secret), "{error:?}");
        }
    }
}

#[test]
fn a_server_that_is_away_is_a_passing_failure() {
    let Some(mut server) = S3Server::start() else { return };
    let objects = s3(&server, server.endpoint());
    objects.create("before", Bytes::from_static(b"bytes")).unwrap();
    let (is_failed, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (objects, is_failed, is_over) = (&objects, &is_failed, &is_over);
            scope.spawn(move || {
                for number in 0.. {
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    match objects
                        .create(&format!("{thread}/{number}"), Bytes::from(vec![7; 200_000]))
                    {
                        Ok(created) => assert_eq!(created, Created::New),
                        Err(error) => {
                            assert!(is_transient(&error), "{error:?}");
                            is_failed.store(true, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
        let _end = at_end(|| is_over.store(true, Ordering::SeqCst));
        eventually("objects are there", || !objects.list("0/", None).unwrap().is_empty());
        server.kill();
        eventually("a request fails", || is_failed.load(Ordering::SeqCst));
        let error = objects.list("", None).unwrap_err();
        assert!(is_transient(&error) && error.to_string().contains(&server.endpoint()), "{error}");
        server.restart();
    });
    assert_eq!(objects.read("before", None).unwrap(), &b"bytes"[..]);
}

#[test]
fn an_overloaded_server_and_a_lost_network_are_passing_failures() {
    let Some(server) = S3Server::start() else { return };
    let proxy = Proxy::start(server.address(), Duration::from_millis(5));
    let objects = s3(&server, proxy.endpoint());
    let all = |objects: &dyn Objects| {
        [
            objects.create("object", Bytes::from(vec![1; 1 << 20])).map(drop),
            objects.replace("object", Bytes::from_static(b"2")),
            objects.read("object", None).map(drop),
            objects.read("object", Some(0..1)).map(drop),
            objects.list("", None).map(drop),
            objects.remove("object"),
        ]
    };
    proxy.overload(true);
    for outcome in all(&*objects) {
        let error = outcome.unwrap_err();
        assert!(is_transient(&error), "{error:?}");
        assert!(error.to_string().contains("503 SlowDown"), "{error}");
    }
    proxy.overload(false);
    proxy.cut();
    for outcome in all(&*objects) {
        let error = outcome.unwrap_err();
        assert!(is_transient(&error), "{error:?}");
    }
    proxy.mend();
    for outcome in all(&*objects) {
        outcome.unwrap();
    }
}

/// Connections end in the middle of requests and of answers.
#[test]
fn what_is_read_over_a_bad_network_is_whole_or_a_passing_failure() {
    let Some(server) = S3Server::start() else { return };
    let proxy = Proxy::start(server.address(), Duration::ZERO);
    let objects = s3(&server, proxy.endpoint());
    let bytes = Bytes::from((0..1_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    objects.create("object", bytes.clone()).unwrap();
    let (read, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    match objects.read("object", None) {
                        Ok(found) => {
                            assert!(found == bytes);
                            read.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(error) => {
                            assert!(is_transient(&error), "{error:?}");
                            failed.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
        let _end = at_end(|| is_over.store(true, Ordering::SeqCst));
        for _ in 0..20 {
            let before = (read.load(Ordering::SeqCst), failed.load(Ordering::SeqCst));
            eventually("a read", || read.load(Ordering::SeqCst) > before.0);
            proxy.cut();
            eventually("a failure", || failed.load(Ordering::SeqCst) > before.1);
            proxy.mend();
        }
    });
}

/// A failed request is made again by the layer above, which counts it; here it is one request.
#[test]
fn no_request_is_made_again() {
    let Some(server) = S3Server::start() else { return };
    let proxy = Proxy::start(server.address(), Duration::ZERO);
    let objects = s3(&server, proxy.endpoint());
    objects.list("", None).unwrap();
    proxy.overload(true);
    let before = proxy.requests();
    objects.read("object", None).unwrap_err();
    objects.list("", None).unwrap_err();
    objects.remove("object").unwrap_err();
    assert_eq!(proxy.requests() - before, 3);
}

#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the threads of this process are files of the machine"
)]
fn a_drop_ends_all_threads() {
    let Some(server) = S3Server::start() else { return };
    let objects = s3(&server, server.endpoint());
    objects.create_all((0..40).map(|number| (number.to_string(), Bytes::new())).collect());
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "varve-objects").count()
    };
    // Other tests have adapters too, so this one looks at its own process only.
    if std::env::var_os("VARVE_STORAGE_THREADS").is_none() {
        let mut command = varve_testkit::Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "objects::a_drop_ends_all_threads"])
            .env("VARVE_STORAGE_THREADS", "1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    assert!(threads() >= 2);
    drop(objects);
    assert_eq!(threads(), 0);
}
