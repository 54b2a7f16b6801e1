//! `VARVE.copy`: the superblock once more, so that one damaged or lost file does not make a store unreachable.
//!
//! 1. Both are written by whoever writes the superblock, `VARVE` first: it alone says what the store is, and that it is one. After
//!    a crash in between the copy is missing or older, by a design at most, which is for tables to come.
//! 2. A store that has no such copy, from before there were any or after such a crash, gets one when it is next opened for
//!    writing ([`Superblock::keep_copy`]). Without room for it the store is opened all the same.
//! 3. Nobody reads the copy as long as `VARVE` can be read. If it cannot, only a check goes by the copy
//!    ([`Superblock::read_or_copy`]), and only a repair makes `VARVE` of it ([`Superblock::restore`]): a mount refuses.

use std::path::Path;

use varve_engine::{StoreError, StoreResult};
use varve_env::Env;

use super::Superblock;
use crate::store_lock::take_lock;

/// Name of the superblock's copy within a store.
pub const COPY_NAME: &str = "VARVE.copy";

impl Superblock {
    /// The superblock of the store in `dir`, or its copy if that is all that can be read; with what is wrong with the other one
    /// of the two. That there is no copy is nothing wrong.
    pub fn read_or_copy(
        env: &dyn Env,
        dir: &Path,
    ) -> StoreResult<(Superblock, Option<StoreError>)> {
        let read = Superblock::read(env, dir);
        let copy = || Superblock::read_file(env, &dir.join(COPY_NAME));
        match read {
            Ok(superblock) => {
                Ok((superblock, copy().err().filter(|e| matches!(e, StoreError::Damaged { .. }))))
            }
            Err(error @ StoreError::Damaged { .. }) => match copy() {
                Ok(Some(copy)) => Ok((copy, Some(error))),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Writes the superblock of the store in `dir` and its copy anew if one of them is damaged, or the superblock lost; says
    /// what was wrong. `Locked` while the store is open.
    pub fn restore(env: &dyn Env, dir: &Path) -> StoreResult<Option<StoreError>> {
        // What is no store gets no lock.
        if Superblock::read_or_copy(env, dir)?.1.is_none() {
            return Ok(None);
        }
        let _lock = take_lock(env, dir, None)?;
        let (superblock, error) = Superblock::read_or_copy(env, dir)?;
        if error.is_some() {
            superblock.write(env, dir)?;
        }
        Ok(error)
    }

    /// Has the store in `dir`, which the caller has locked, have a copy of this superblock.
    pub(crate) fn keep_copy(&self, env: &dyn Env, dir: &Path) {
        let found = Superblock::read_file(env, &dir.join(COPY_NAME));
        if matches!(&found, Ok(Some(copy)) if copy == self) {
            return;
        }
        if let Err(error) = self.write_file(env, dir, COPY_NAME) {
            log::warn!("{} has no copy of its superblock: {error}", dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use varve_env::sim::SimEnv;

    use super::super::{SUPERBLOCK_NAME, tests::example};
    use super::*;
    use varve_engine::StoreDesign;

    const DIR: &str = "/s";

    fn store() -> std::sync::Arc<SimEnv> {
        let (env, dir) = (SimEnv::new(7), Path::new(DIR));
        env.create_dir(dir).unwrap();
        example().write(&*env, dir).unwrap();
        env.sync_dir(Path::new("/")).unwrap();
        env
    }

    fn sound(env: &dyn Env) {
        let (found, error) = Superblock::read_or_copy(env, Path::new(DIR)).unwrap();
        assert!(found == example() && error.is_none(), "{error:?}");
    }

    #[test]
    fn each_of_the_two_is_restored_from_the_other() {
        let dir = Path::new(DIR);
        for name in [SUPERBLOCK_NAME, COPY_NAME] {
            let env = store();
            sound(&*env);
            env.damage(&dir.join(name), 30, 1).unwrap();
            let (found, error) = Superblock::read_or_copy(&*env, dir).unwrap();
            assert_eq!(found, example());
            assert!(error.unwrap().to_string().contains(&format!("/s/{name} is damaged")));
            assert_eq!(Superblock::read(&*env, dir).is_ok(), name == COPY_NAME);
            let lock = take_lock(&*env, dir, None).unwrap();
            assert!(matches!(Superblock::restore(&*env, dir), Err(StoreError::Locked { .. })));
            drop(lock);
            assert!(Superblock::restore(&*env, dir).unwrap().is_some());
            sound(&*env);
            assert!(Superblock::restore(&*env, dir).unwrap().is_none());
        }
        let env = store();
        env.remove_file(&dir.join(SUPERBLOCK_NAME)).unwrap();
        let error = Superblock::read(&*env, dir).unwrap_err().to_string();
        assert!(error.contains("/s/VARVE is damaged") && error.contains("missing"), "{error}");
        assert!(Superblock::restore(&*env, dir).unwrap().is_some());
        sound(&*env);
        env.remove_file(&dir.join(COPY_NAME)).unwrap();
        sound(&*env);
        env.remove_file(&dir.join(SUPERBLOCK_NAME)).unwrap();
        for found in [
            Superblock::read(&*env, dir).map(drop),
            Superblock::read_or_copy(&*env, dir).map(drop),
            Superblock::restore(&*env, dir).map(drop),
        ] {
            assert!(matches!(found, Err(StoreError::NotAStore { .. })), "{found:?}");
        }
    }

    /// At no point of a repair, of a change of the design or of writing a missing copy are both lost, nor is either torn.
    #[test]
    fn a_crash_leaves_a_superblock_that_can_be_restored() {
        let dir = Path::new(DIR);
        let repair = |env: &SimEnv| {
            env.damage(&dir.join(SUPERBLOCK_NAME), 30, 1).unwrap();
            Superblock::restore(env, dir).is_ok()
        };
        let change = |env: &SimEnv| {
            Superblock::change_design(env, dir, |design| *design = StoreDesign::SLIMFS).is_ok()
        };
        let keep = |env: &SimEnv| {
            env.remove_file(&dir.join(COPY_NAME)).is_ok() && {
                example().keep_copy(env, dir);
                true
            }
        };
        for work in [&repair as &dyn Fn(&SimEnv) -> bool, &change, &keep] {
            let env = store();
            let before = env.op_count();
            assert!(work(&env));
            for at in before..=env.op_count() {
                let env = store();
                env.crash_after(at);
                let done = work(&env);
                let cut = env.power_cut(at);
                let (found, error) = Superblock::read_or_copy(&*cut, dir).unwrap();
                let design = found.design;
                assert!([StoreDesign::default(), StoreDesign::SLIMFS].contains(&design));
                assert_eq!(Superblock { design: example().design, ..found }, example());
                let torn = error.is_some_and(|error| error.to_string().contains(COPY_NAME));
                assert!(!torn, "crash at {at}, done: {done}");
            }
        }
    }
}
