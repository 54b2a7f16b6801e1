//! What was committed, done once more on a model in the order of the commits.
//!
//! All of a serializable transaction happens at the moment of its commit, and each change of the main tree by itself. So the model must
//! find what each call found, names that are not there included, and be what the main tree is at the end.

use std::collections::BTreeMap;

use varve_testkit::model::ModelFs;
use varve_types::InodeId;
use varve_vfs::{FileType, FsError, FsResult, Vfs};

use super::acts::{Act, Found, Log, digest, names_in};
use super::{Run, XATTRS, begin};
use crate::support::{Calls, READ, ROOT};

/// A file or directory: kind, mode, links, bytes and extended attributes.
type Seen = (FileType, u32, u32, u64, Vec<Option<Vec<u8>>>);

/// See the module's comment.
pub(super) struct Replay {
    model: ModelFs,
    /// The numbers that directories of the main tree have in the model.
    dirs: BTreeMap<InodeId, InodeId>,
    /// What has come to something else.
    differs: Option<String>,
}

impl Replay {
    /// Begins as all runs do. Nobody knows a directory that is removed, here as there.
    pub(super) fn new(fs: &dyn Vfs, dirs: &[InodeId], filled: &[usize]) -> Replay {
        let model = ModelFs::on_this_machine();
        let own = begin(&model, filled);
        dirs.iter().skip(1).for_each(|dir| fs.forget(*dir, 1));
        own.iter().skip(1).for_each(|dir| model.forget(*dir, 1));
        let dirs = dirs.iter().copied().zip(own).collect();
        Replay { model, dirs, differs: None }
    }

    fn one(&mut self, (act, found): &(Act, Option<Found>)) -> Result<(), String> {
        let own = act.with_dirs(|dir| self.dirs.get(&dir).copied());
        let got = own.and_then(|own| own.apply(&self.model).ok());
        match (found, &got) {
            (Some(Found::Made(dir)), Some(Found::Made(own))) => {
                self.dirs.insert(*dir, *own);
            }
            _ if *found == got => {}
            _ => return Err(format!("{act:?} found {found:?}, and {got:?} when it is replayed")),
        }
        Ok(())
    }
}

impl Run<'_> {
    /// Replays what was committed. What comes to something else is a failure, unless transactions see snapshots.
    pub(super) fn replay(&mut self, log: &Log, what: &str) {
        let Some(replay) = &mut self.replay else { return };
        if replay.differs.is_some() {
            return;
        }
        let differs = log.iter().find_map(|one| replay.one(one).err());
        self.tally.replayed += 1;
        if let Some(differs) = differs {
            self.not_serial(format!("{what}: {differs}"));
        }
    }

    /// Whether the replay has come to the same.
    pub(super) fn compare_replayed(&mut self) {
        let Some(replay) = self.replay.as_ref().filter(|replay| replay.differs.is_none()) else {
            return;
        };
        let (own, there) = (tree(&replay.model).unwrap(), tree(self.fs.as_ref()).unwrap());
        if own != there {
            let unlike = |(path, seen): &(&String, &Seen)| own.get(*path) != Some(*seen);
            let unlike: Vec<_> = there.iter().filter(unlike).collect();
            let (own, there) = (own.len(), there.len());
            self.not_serial(format!(
                "{there} names, {own} in the replay; not so there: {unlike:?}"
            ));
        }
    }

    fn not_serial(&mut self, differs: String) {
        if self.how.serializable == 100 {
            self.fail(&format!("not as if one had run after the other: {differs}"));
        }
        self.tally.not_serial += 1;
        if let Some(replay) = &mut self.replay {
            replay.differs = Some(differs);
        }
    }
}

/// All that there is, by path.
fn tree(fs: &dyn Vfs) -> FsResult<BTreeMap<String, Seen>> {
    let (mut tree, mut left) = (BTreeMap::new(), vec![(ROOT, String::new())]);
    while let Some((dir, path)) = left.pop() {
        for text in names_in(fs, dir)? {
            let (attr, path) = (fs.find(dir, &text)?, format!("{path}/{text}"));
            let mut bytes = 0;
            match attr.kind {
                FileType::Directory => left.push((attr.ino, path.clone())),
                FileType::Regular => {
                    let handle = fs.open(attr.ino, READ)?.handle;
                    bytes = digest(&fs.read(attr.ino, handle, 0, 1 << 20)?);
                    fs.release(attr.ino, handle)?;
                }
                _ => {}
            }
            let xattr = |attribute: &&[u8]| match fs.getxattr(attr.ino, attribute) {
                Err(FsError::NoXattr) => Ok(None),
                value => value.map(|value| Some(value.to_vec())),
            };
            let xattrs = XATTRS.iter().map(xattr).collect::<FsResult<_>>()?;
            tree.insert(path, (attr.kind, attr.perm, attr.nlink, bytes, xattrs));
            fs.forget(attr.ino, 1);
        }
    }
    Ok(tree)
}
