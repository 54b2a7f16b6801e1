//! Copies, syncs and removals of objects.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use varve_env::sim::SimEnv;
use varve_testkit::PATIENCE;
use varve_testkit::hooked::{Before, HookedEnv, Hooks};

use super::*;

const ONE: InodeId = InodeId::new(100);
const OTHER: InodeId = InodeId::new(101);

/// What happens while a view makes something of its own.
#[derive(Default)]
struct Making {
    /// Once, before a file is made.
    once_made: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Before blocks that have no name yet are synced.
    before_sync: Mutex<Option<Before>>,
}

impl Hooks for Making {
    fn before_open(&self, _path: &Path, mode: OpenMode) -> io::Result<()> {
        let happens = self.once_made.lock().take_if(|_| mode == OpenMode::CreateNew);
        if let Some(happens) = happens {
            happens();
        }
        Ok(())
    }

    fn before_syncs_of(&self, path: &Path) -> Option<Before> {
        let is_begun = path.extension().is_some_and(|end| end == "blocks-begun");
        self.before_sync.lock().clone().filter(|_| is_begun)
    }
}

/// A machine with hooks, the same without, and a view of a store there.
fn making() -> (Arc<HookedEnv<Making>>, Arc<SimEnv>, Arc<Objects>) {
    let (sim, store) = (SimEnv::new(1), Path::new("/store"));
    ["/store", "/store/views"].iter().for_each(|dir| sim.create_dir(Path::new(dir)).unwrap());
    sim.sync_dir(Path::new("/")).unwrap();
    let env = Arc::new(HookedEnv::new(&sim, Making::default()));
    let machine: Arc<dyn Env> = env.clone();
    let objects = Arc::new(Objects::new(machine, store, 256).unwrap());
    let view = Arc::new(objects.of_view(store.join("views/900"), None));
    (env, sim, view)
}

/// A sync of another file in the transaction, right before one was made, left its name to nobody.
#[test]
fn an_own_file_that_is_synced_has_a_durable_name() {
    let (env, sim, view) = making();
    let sync = |view: &Objects, ino, own| match own {
        Own::All(file) => view.sync(ino, file.as_ref(), true).unwrap(),
        Own::Blocks(_) => panic!("no file"),
    };
    let of_other = view.make_own(OTHER, true).unwrap();
    let ((go, gone), (tell, told)) = (mpsc::channel(), mpsc::channel::<()>());
    *env.hooks.once_made.lock() = Some(Box::new(move || {
        go.send(()).unwrap();
        let _ = told.recv_timeout(Duration::from_millis(100));
    }));
    thread::scope(|scope| {
        let view = &view;
        scope.spawn(move || {
            gone.recv().unwrap();
            sync(view, OTHER, of_other);
            let _ = tell.send(());
        });
        sync(view, ONE, view.make_own(ONE, true).unwrap());
    });
    let left = sim.power_cut_keep_nothing();
    assert!(left.stat(&view.path(ONE)).is_ok());
}

/// A new large file of a transaction waited for the sync of what the first write to another one makes.
#[test]
fn who_makes_an_own_file_waits_for_no_sync_of_another() {
    let (env, machine, view) = making();
    let Origin::View { store, .. } = &view.origin else { panic!("no view") };
    store.create(ONE).unwrap();
    let (done, made) = mpsc::channel();
    let while_it_waits = Arc::new(Mutex::new(Vec::new()));
    let (of_view, told) = (Arc::clone(&view), Arc::clone(&while_it_waits));
    let made = Mutex::new(made);
    *env.hooks.before_sync.lock() = Some(Arc::new(move || {
        let (view, done) = (Arc::clone(&of_view), done.clone());
        let create = move || done.send(view.create(OTHER).is_ok()).unwrap_or_default();
        machine.spawn("other", Box::new(create)).unwrap();
        told.lock().push(made.lock().recv_timeout(PATIENCE));
    }));
    view.make_own(ONE, false).unwrap();
    assert_eq!(*while_it_waits.lock(), [Ok(true)]);
}

/// TableFS 4.2.1: inode I is stored as K/J/I with J = I / 10000 and K = J / 10000.
#[test]
fn an_object_lies_two_levels_deep() {
    let path = object_path(Path::new("/o"), InodeId::new(1_234_567_890_123));
    assert_eq!(path, Path::new("/o/12345/123456789/1234567890123"));
    assert_eq!(object_path(Path::new("/o"), InodeId::new(16)), Path::new("/o/0/0/16"));
}
