//! What syncs of objects tell when the storage fails.

use std::sync::mpsc::channel;
use std::time::Duration;

use parking_lot::Mutex;
use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_testkit::hooked::{HookedEnv, Hooks};

use super::*;
use crate::epoch::Epoch;
use crate::superblock::{objects_dir, view_dir};

const INO: InodeId = InodeId::new(100);
const STORE: &str = "/store";

/// A machine with the objects of a store.
fn objects() -> (Arc<SimEnv>, Arc<Objects>) {
    let env = SimEnv::new(1);
    let dirs = [PathBuf::from(STORE), objects_dir(Path::new(STORE))];
    for dir in dirs {
        env.create_dir(&dir).unwrap();
        env.sync_dir(dir.parent().unwrap()).unwrap();
    }
    let machine: Arc<dyn Env> = env.clone();
    (env, Arc::new(Objects::new(machine, Path::new(STORE), 256).unwrap()))
}

/// An object of `objects` that could not be written to the device after it was closed, of which somebody else was told.
fn lose_one(env: &SimEnv, objects: &Arc<Objects>) {
    let file = objects.create(INO).unwrap();
    file.write_all_at(&[1; 5000], 0).unwrap();
    drop(file);
    env.lose_unsynced(&objects.path(INO)).unwrap();
    objects.note_unclaimed();
}

/// A sync of all opened a descriptor of its own, which is told nothing of what others were told before.
#[test]
fn a_sync_of_all_tells_what_failed_since_the_store_was_opened() {
    let (env, objects) = objects();
    lose_one(&env, &objects);
    assert!(objects.sync_unclaimed().is_err());
    assert!(objects.sync_unclaimed().is_err() && objects.sync_claimed().is_err(), "for ever");
}

/// The storage tells of it once, whose sync ever that is.
#[test]
fn a_sync_of_all_that_failed_for_a_view_failed_for_all() {
    let (env, objects) = objects();
    let view = |id| Arc::new(objects.of_view(view_dir(Path::new(STORE), id), None));
    let [one, other] = [200, 300].map(|id| view(Epoch::new(id)));
    let views = Path::new(STORE).join("views");
    env.create_dir(&views).unwrap();
    one.make_own(INO, true).unwrap();
    lose_one(&env, &objects);
    one.note_unclaimed();
    assert!(one.sync_unclaimed().is_err());
    other.make_own(INO, true).unwrap();
    other.note_unclaimed();
    assert!(other.sync_unclaimed().is_err());
    assert!(objects.sync_unclaimed().is_err());
}

/// Storage that has to be asked about each file.
#[derive(Debug)]
struct Each;

impl Hooks for Each {
    fn syncs_all_at_once(&self) -> bool {
        false
    }
}

/// Objects of a store on such storage, with `count` that are being claimed.
fn claimed(count: u64) -> (Arc<SimEnv>, Arc<Objects>) {
    let (env, _) = objects();
    let machine: Arc<dyn Env> = Arc::new(HookedEnv::new(&env, Each));
    let objects = Arc::new(Objects::new(machine, Path::new(STORE), 256).unwrap());
    claim(&objects, 0..count);
    (env, objects)
}

fn claim(objects: &Arc<Objects>, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let ino = InodeId::new(INO.get() + n);
        let object = objects.create(ino).unwrap();
        object.write_all_at(&[1; 5000], 0).unwrap();
        objects.claim(ino, object);
    }
}

/// Where one sync of all is one of each, a store with many large files would have synced all of them each time.
#[test]
fn a_sync_of_what_is_claimed_costs_what_is_claimed_where_no_sync_is_of_all() {
    let (env, objects) = claimed(200);
    objects.sync_claimed().unwrap();
    let before = env.count_of(SimOp::Sync);
    claim(&objects, 200..270);
    objects.sync_claimed().unwrap();
    assert_eq!(env.count_of(SimOp::Sync) - before, 70);
    let after = env.power_cut_keep_nothing();
    for n in 0..270 {
        let path = objects.path(InodeId::new(INO.get() + n));
        assert_eq!(after.stat(&path).unwrap().len, 5000, "{n}");
    }
}

/// It is told when the rows that claim it are to be durable.
#[test]
fn a_failed_sync_of_one_of_many_that_are_claimed_is_not_forgotten() {
    let (env, objects) = claimed(80);
    objects.sync_claimed().unwrap();
    let path_suffix = (INO.get() + 200).to_string();
    env.fail(FaultRule { path_suffix, op: SimOp::Sync, nth: 1, errno: 5, sticky: false });
    claim(&objects, 100..250);
    assert!(objects.sync_claimed().is_err());
    assert!(objects.sync_claimed().is_err(), "for ever");
}

/// While one sync of all has failed and is about to say so, another sync of all begins.
#[derive(Default)]
struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hooks for Meanwhile {
    fn after_sync_below(&self) {
        if let Some(work) = self.0.lock().take() {
            work();
        }
    }
}

/// The storage tells one only, and the other was told that all is durable.
#[test]
fn of_two_syncs_of_all_at_once_both_tell_what_failed() {
    let (env, _) = objects();
    let hooked = Arc::new(HookedEnv::new(&env, Meanwhile::default()));
    let machine: Arc<dyn Env> = Arc::<HookedEnv<Meanwhile>>::clone(&hooked);
    let objects = Arc::new(Objects::new(machine, Path::new(STORE), 256).unwrap());
    let view = Arc::new(objects.of_view(view_dir(Path::new(STORE), Epoch::new(200)), None));
    env.create_dir(&Path::new(STORE).join("views")).unwrap();
    view.make_own(INO, true).unwrap();
    view.note_unclaimed();
    lose_one(&env, &objects);
    let ((begin, is_begun), (done, is_done)) = (channel::<()>(), channel::<()>());
    *hooked.hooks.0.lock() = Some(Box::new(move || {
        drop(begin);
        // The other waits for this one, or is done before.
        let _ = is_done.recv_timeout(Duration::from_secs(1));
    }));
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let _ = is_begun.recv();
            let synced = view.sync_unclaimed();
            drop(done);
            synced
        });
        assert!(objects.sync_unclaimed().is_err());
        assert!(other.join().unwrap().is_err());
    });
}
