//! The file system on another store than Varve's engine.

use std::sync::Arc;

use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fs::{EngineKind, FormatOptions, format};

/// Without `--features engine-fjall`.
#[cfg(not(feature = "engine-fjall"))]
#[test]
fn an_engine_that_the_program_lacks_is_refused_before_anything_is_made() {
    let (env, dir): (Arc<dyn Env>, _) = (OsEnv::new(), tempfile::tempdir().unwrap());
    let store = dir.path().join("store");
    let options = FormatOptions { engine: EngineKind::Fjall, ..FormatOptions::default() };
    let error = format(&env, &store, &options).unwrap_err();
    assert!(error.to_string().contains("--features engine-fjall"), "{error}");
    assert!(!store.exists());
}

#[cfg(feature = "engine-fjall")]
mod with_fjall {
    use std::time::Duration;

    use varve_fs::{MountOptions, VarveFs};
    use varve_testkit::fsops::Lockstep;
    use varve_types::InodeId;
    use varve_vfs::Vfs;

    use super::*;
    use crate::against_model::run_rounds;
    use crate::support::Calls;

    const OPS: u64 = 150;
    const TICK: Duration = Duration::from_millis(5);

    /// Random operations, with a remount and a check of the rows after each round.
    fn lockstep(seed: u64, options: &FormatOptions) {
        let (env, dir): (Arc<dyn Env>, _) = (OsEnv::new(), tempfile::tempdir().unwrap());
        let store = dir.path().join("store");
        format(&env, &store, options).unwrap();
        let open = || VarveFs::open(Arc::clone(&env), &store, MountOptions::default()).unwrap();
        run_rounds(Lockstep::new(seed), &open, 3, &|lockstep, fs| {
            (0..OPS).try_for_each(|_| {
                // The real clock gives the same time for some milliseconds; the model expects times to move.
                env.sleep(TICK);
                lockstep.run(fs, 1)
            })
        });
    }

    fn on_fjall() -> FormatOptions {
        FormatOptions { engine: EngineKind::Fjall, ..FormatOptions::default() }
    }

    #[test]
    fn random_operations_on_fjall_answer_as_the_model_does() {
        for seed in 0..2 {
            lockstep(seed, &on_fjall());
        }
    }

    #[test]
    fn random_operations_on_fjall_with_colliding_names_and_large_files_answer_as_the_model_does() {
        let options =
            FormatOptions { name_hash_bits: 1, large_file_threshold_bytes: 4096, ..on_fjall() };
        lockstep(7, &options);
    }

    #[test]
    fn what_is_not_closed_is_found_again() {
        let (env, dir): (Arc<dyn Env>, _) = (OsEnv::new(), tempfile::tempdir().unwrap());
        let store = dir.path().join("store");
        format(&env, &store, &on_fjall()).unwrap();
        let fs = VarveFs::open(Arc::clone(&env), &store, MountOptions::default()).unwrap();
        let file = fs.mk(InodeId::ROOT, "kept");
        fs.put_at(file, 0, b"some bytes");
        fs.sync().unwrap();
        drop(fs);
        let fs = VarveFs::open(env, &store, MountOptions::default()).unwrap();
        let found = fs.find(InodeId::ROOT, "kept").unwrap().ino;
        assert_eq!(fs.contents(found), b"some bytes");
    }
}
