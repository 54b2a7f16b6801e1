//! Installations that are cut short anywhere.

use std::sync::Arc;

use varve_env::sim::SimEnv;
use varve_env::{Env, File};

use super::*;
use crate::superblock::view_dir;

const STORE: &str = "/store";
const INO: InodeId = InodeId::new(100);
/// Of a view that stays.
const OTHER: Epoch = Epoch::new(200);
/// Of the view that is committed.
const VIEW: Epoch = Epoch::new(300);
const LEN: usize = 70_000;

fn objects(env: &Arc<SimEnv>) -> Arc<Objects> {
    let env: Arc<dyn Env> = env.clone();
    Arc::new(Objects::new(env, Path::new(STORE), 256).unwrap())
}

fn bytes_of(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.stat().unwrap().len as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// A machine with an object that one view sees and another has changed, durably; and the store's objects there.
fn changed(seed: u64) -> (Arc<SimEnv>, Arc<Objects>) {
    let env = SimEnv::new(seed);
    env.create_dir(Path::new(STORE)).unwrap();
    env.sync_dir(Path::new("/")).unwrap();
    let objects = objects(&env);
    let object = objects.create(INO).unwrap();
    object.write_all_at(&[1; LEN], 0).unwrap();
    objects.claim(INO, object);
    objects.sync_claimed().unwrap();
    let preimages = objects.preimages().unwrap();
    preimages.begin(OTHER);
    preimages.begin(VIEW);
    let view = Arc::new(objects.of_view(view_dir(Path::new(STORE), VIEW), Some(VIEW)));
    let file = view.open(INO, OpenMode::ReadWrite).unwrap();
    file.write_all_at(b"changed", 10).unwrap();
    view.claim(INO, file);
    view.sync_claimed().unwrap();
    (env, objects)
}

/// The object of which a copy was made had moved to where the other view sees it, and the copy had no name that the next
/// mount looks for: it could not be mounted.
#[test]
fn a_crash_anywhere_leaves_what_the_next_mount_installs() {
    let own = view_dir(Path::new(STORE), VIEW);
    let mut expected = vec![1; LEN];
    expected[10..17].copy_from_slice(b"changed");
    for copies in [false, true] {
        let mut crashes = 0;
        for n in 0.. {
            let (env, objects) = changed(n);
            let copied = objects.prepare(&[INO], &own, VIEW, &|_| copies).unwrap();
            assert_eq!(copied.len(), usize::from(copies));
            objects.preimages().unwrap().retire(VIEW);
            env.crash_after(env.op_count() + n);
            let installed = objects.install(&[INO], &own, &copied);
            let crashed = env.crashed();
            assert!(crashed || installed.is_ok(), "{installed:?}");
            let images = [
                env.process_kill(),
                env.power_cut_keep_nothing(),
                env.power_cut_keep_all(),
                env.power_cut(n),
            ];
            for image in images {
                let objects = self::objects(&image);
                let preimages = objects.preimages().unwrap();
                preimages.begin(OTHER);
                preimages.retire(VIEW);
                let is_staged = matches!(objects.staged(INO, &own).unwrap(), Staged::Ready(_));
                assert!(is_staged || objects.find(INO).unwrap().is_some(), "crash {n}");
                objects.install(&[INO], &own, &BTreeSet::new()).unwrap();
                let object = objects.open(INO, OpenMode::Read).unwrap();
                assert!(bytes_of(object.as_ref()) == expected, "crash {n}");
                let then =
                    preimages.read(OTHER, INO, &objects.path(INO), |file| Ok(bytes_of(file)));
                assert!(then.unwrap() == [1; LEN], "crash {n}");
            }
            crashes += u32::from(crashed);
            if !crashed {
                break;
            }
        }
        assert!(crashes > 5, "{crashes}");
    }
}
