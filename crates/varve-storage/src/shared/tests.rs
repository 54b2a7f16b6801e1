use varve_env::sim::SimEnv;

use super::*;

fn objects(env: &Arc<SimEnv>) -> SharedObjects {
    let env: Arc<dyn Env> = Arc::clone(env) as Arc<dyn Env>;
    SharedObjects::open(env, PathBuf::from("/shared"), "shared:///shared".to_owned())
}

#[test]
fn an_object_is_made_once_and_replaced_whole() {
    let env = SimEnv::new(1);
    let objects = objects(&env);
    let bytes = Bytes::from_static(b"first");
    assert_eq!(objects.create("a/b/c", bytes.clone()).unwrap(), Created::New);
    assert_eq!(objects.create("a/b/c", Bytes::from_static(b"second")).unwrap(), Created::Exists);
    assert_eq!(objects.read("a/b/c", None).unwrap(), bytes);
    objects.replace("a/b/c", Bytes::from_static(b"third")).unwrap();
    assert_eq!(objects.read("a/b/c", Some(1..3)).unwrap(), &b"hi"[..]);
    assert_eq!(objects.read("a/b/c", Some(4..100)).unwrap(), &b"d"[..]);
    assert_eq!(objects.read("a/b/c", Some(100..200)).unwrap(), Bytes::new());
    objects.remove("a/b/c").unwrap();
    objects.remove("a/b/c").unwrap();
    assert_eq!(objects.read("a/b/c", None).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(env.list(Path::new("/shared/~unfinished")).unwrap().is_empty());
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let objects = objects(&SimEnv::new(1));
    for name in ["", "/a", "a/", "a//b", "../a", "a/./b", "~unfinished/x", "a b", "a\0"] {
        let error = objects.create(name, Bytes::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
    }
}

#[test]
fn listings_have_the_order_of_names_as_bytes() {
    let objects = objects(&SimEnv::new(1));
    assert!(objects.list("", None).unwrap().is_empty());
    let names = ["a-b", "a.b", "a/b", "a/c/d", "a0", "b", "ba/x"];
    for name in names.iter().rev() {
        objects.create(name, Bytes::from(name.to_string())).unwrap();
    }
    for prefix in ["", "a", "a/", "a/c", "b", "ba/", "c"] {
        for after in [
            None,
            Some("a"),
            Some("a-b"),
            Some("a/"),
            Some("a/b"),
            Some("a/c"),
            Some("a/c/d"),
            Some("z"),
        ] {
            let listed = objects.list(prefix, after).unwrap();
            assert!(listed.iter().all(|info| info.bytes == info.name.len() as u64));
            let listed: Vec<&str> = listed.iter().map(|info| info.name.as_str()).collect();
            let expected = names.iter().copied();
            let expected = expected
                .filter(|name| name.starts_with(prefix) && after.is_none_or(|after| *name > after));
            assert_eq!(listed, expected.collect::<Vec<&str>>(), "{prefix:?} {after:?}");
        }
    }
}

/// What [`Objects::create`] and [`Objects::replace`] promise: what they report survives a power cut.
#[test]
fn reported_objects_are_durable() {
    let env = SimEnv::new(1);
    let made = objects(&env);
    made.create("a/b", Bytes::from_static(b"first")).unwrap();
    made.create("c", Bytes::from_static(b"first")).unwrap();
    let several = ["d/e", "d/f", "g"].map(|name| (name.to_owned(), Bytes::from(name)));
    assert!(made.create_all(several.to_vec()).iter().all(|made| made.is_ok()));
    made.replace("c", Bytes::from_static(b"second")).unwrap();
    let cuts = (0..50).map(|seed| env.power_cut(seed));
    for (seed, cut) in cuts.chain([env.power_cut_keep_nothing()]).enumerate() {
        let found = objects(&cut);
        assert_eq!(found.read("a/b", None).unwrap(), &b"first"[..], "seed {seed}");
        assert_eq!(found.read("c", None).unwrap(), &b"second"[..], "seed {seed}");
        for (name, bytes) in &several {
            assert_eq!(found.read(name, None).unwrap(), bytes, "seed {seed}");
        }
    }
}

/// Another machine made the object, and has not synced the directory yet.
#[test]
fn an_object_that_was_there_before_is_durable() {
    let env = SimEnv::new(1);
    let made = objects(&env);
    made.create("a", Bytes::new()).unwrap();
    let other = made.0.write_temporary(b"theirs").unwrap();
    env.link(&other, Path::new("/shared/b")).unwrap();
    assert_eq!(made.create("b", Bytes::from_static(b"mine")).unwrap(), Created::Exists);
    let found = objects(&env.power_cut_keep_nothing());
    assert_eq!(found.read("b", None).unwrap(), &b"theirs"[..]);
}

#[test]
fn what_a_crash_has_left_is_removed_when_it_is_old() {
    let env = SimEnv::new(1);
    let first = objects(&env);
    let left = first.0.write_temporary(b"half").unwrap();
    drop(objects(&env));
    assert!(env.stat(&left).is_ok());
    env.sleep(std::time::Duration::from_secs(LEFT_AGE as u64 + 10));
    drop(objects(&env));
    assert!(env.list(Path::new("/shared/~unfinished")).unwrap().is_empty());
}
