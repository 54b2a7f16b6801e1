//! What syncs of objects tell when the storage fails.

use varve_env::Env;
use varve_env::sim::SimEnv;

use super::*;
use crate::superblock::view_dir;

const INO: InodeId = InodeId::new(100);
const STORE: &str = "/store";

/// A machine with the objects of a store.
fn objects() -> (Arc<SimEnv>, Arc<Objects>) {
    let env = SimEnv::new(1);
    env.create_dir(Path::new(STORE)).unwrap();
    env.sync_dir(Path::new("/")).unwrap();
    let machine: Arc<dyn Env> = env.clone();
    (env, Arc::new(Objects::new(machine, Path::new(STORE)).unwrap()))
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
    let [one, other] = [200, 300].map(|id| view(InodeId::new(id)));
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
