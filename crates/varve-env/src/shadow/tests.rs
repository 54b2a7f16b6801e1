use varve_testkit::rng::Rng;

use super::*;
use crate::sim::SimEnv;

const PATHS: [&str; 5] = ["/a", "/b", "/d/a", "/d/b", "/e/a"];
const DIRS: [&str; 3] = ["/", "/d", "/e"];

/// A machine with some files.
fn filled(seed: u64) -> Arc<SimEnv> {
    let env = SimEnv::new(seed);
    env.create_dir(Path::new("/d")).unwrap();
    for (path, len) in [("/a", 10_000), ("/d/a", 4096), ("/d/b", 3)] {
        let file = env.open(Path::new(path), OpenMode::CreateNew).unwrap();
        file.write_all_at(&(0..len).map(|at| (at % 251) as u8).collect::<Vec<_>>(), 0).unwrap();
        file.sync_all().unwrap();
    }
    DIRS[..2].iter().for_each(|dir| env.sync_dir(Path::new(dir)).unwrap());
    env
}

/// What a file is changed by, or the error of opening it.
fn change_file(env: &dyn Env, path: &Path, mode: OpenMode, what: [u64; 3]) -> io::Result<()> {
    let file = env.open(path, mode)?;
    let [kind, offset, len] = what;
    match kind {
        0 => file.write_all_at(&vec![len as u8; len as usize], offset),
        1 => file.set_len(offset),
        2 => file.allocate(Allocate::ZeroRange, offset, len + 1),
        3 => file.allocate(Allocate::PunchHole, offset, len + 1),
        4 => file.allocate(Allocate::Extend, offset, len + 1),
        _ => file.sync_all(),
    }
}

/// Does one of the things that change a machine; says how it went.
fn change(env: &dyn Env, draws: [u64; 6]) -> Result<(), io::ErrorKind> {
    let path = |draw: u64| Path::new(PATHS[draw as usize % PATHS.len()]);
    let modes = [OpenMode::ReadWrite, OpenMode::CreateNew, OpenMode::CreateOrOpen];
    let [kind, one, other, mode, offset, len] = draws;
    let done = match kind {
        0 => env.rename(path(one), path(other)),
        1 => env.remove_file(path(one)),
        2 => env.create_dir(Path::new("/e")),
        3 => env.remove_dir(Path::new("/e")),
        4 if one != other => env.link(path(one), path(other)),
        _ => change_file(env, path(one), modes[mode as usize], [kind % 6, offset, len]),
    };
    done.map_err(|error| error.kind())
}

/// All names and bytes.
fn seen(env: &dyn Env) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for dir in DIRS {
        for item in env.list(Path::new(dir)).unwrap_or_default() {
            let path = Path::new(dir).join(&item.name);
            assert_eq!(env.stat(&path).unwrap().kind, item.kind, "{}", path.display());
            let mut bytes = Vec::new();
            if item.kind == FileKind::File {
                let file = env.open(&path, OpenMode::Read).unwrap();
                let len = file.stat().unwrap().len;
                assert_eq!(env.stat(&path).unwrap().len, len);
                bytes.resize(len as usize, 0);
                file.read_exact_at(&mut bytes, 0).unwrap();
            }
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

#[test]
fn what_is_done_is_seen_and_nothing_happens_below() {
    let mut done = 0;
    for seed in 1_u64..200 {
        let mut rng = Rng::new(seed);
        let (below, real) = (filled(seed), filled(seed));
        let before = seen(below.as_ref());
        let shadow = ShadowEnv::new(below.clone());
        for _ in 0..60 {
            let bounds = [16, 5, 5, 3, 12_000, 5000];
            let draws = bounds.map(|bound| rng.below(bound));
            let (expected, found) = (change(real.as_ref(), draws), change(shadow.as_ref(), draws));
            assert_eq!(found, expected, "seed {seed}: {draws:?}");
            assert_eq!(seen(shadow.as_ref()), seen(real.as_ref()), "seed {seed}: {draws:?}");
            done += u64::from(found.is_ok());
        }
        assert_eq!(seen(below.as_ref()), before, "seed {seed}");
    }
    assert!(done > 3000, "only {done} changes were made");
}
