//! The names of targets.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::Ground;
use super::store::Store;
use crate::Failure;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A directory of whatever is there.
    Path(PathBuf),
    /// ext4 in an image.
    Ext4,
    /// XFS in an image.
    Xfs,
    /// Btrfs in an image.
    Btrfs,
    /// A file system in memory.
    Tmpfs,
    /// A mount of a Varve store.
    Varve,
    /// A mount of a server of a Varve store.
    Served,
    /// A Varve store, called without the kernel.
    Library,
    /// A FUSE file system without storage.
    Null,
}

/// The name of a target: `KIND[:OPTION,...][@DIR]`, or the path of a directory, which holds a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    /// What it is.
    pub(crate) kind: Kind,
    /// What follows the colon.
    pub(crate) options: Vec<String>,
    /// The directory for a Varve store, instead of an image of its own.
    pub(crate) dir: Option<PathBuf>,
    text: String,
}

impl FromStr for Spec {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Spec, Failure> {
        let (what, dir) = match text.split_once('@') {
            Some((what, dir)) => (what, Some(PathBuf::from(dir))),
            None => (text, None),
        };
        let (name, options) = what.split_once(':').unwrap_or((what, ""));
        let kind = match name {
            "ext4" => Kind::Ext4,
            "xfs" => Kind::Xfs,
            "btrfs" => Kind::Btrfs,
            "tmpfs" => Kind::Tmpfs,
            "varve" => Kind::Varve,
            "served" => Kind::Served,
            "library" => Kind::Library,
            "null" => Kind::Null,
            _ if text.contains('/') => {
                let kind = Kind::Path(PathBuf::from(text));
                return Ok(Spec { kind, options: Vec::new(), dir: None, text: text.to_owned() });
            }
            _ => {
                return Err(format!(
                    "`{text}` is no target: ext4, xfs, btrfs, tmpfs, varve, served, library, null, or the path of a \
                     directory, as ./{text}"
                )
                .into());
            }
        };
        if dir.is_some() && !matches!(kind, Kind::Varve | Kind::Served | Kind::Library) {
            return Err(format!("{text}: only varve, served and library lie in a directory").into());
        }
        let options = options.split(',').filter(|o| !o.is_empty()).map(str::to_owned).collect();
        Ok(Spec { kind, options, dir, text: text.to_owned() })
    }
}

impl Spec {
    /// An error that says what to do unless all is there that it is made of.
    pub(crate) fn require(&self, ground: &Ground) -> Result<(), Failure> {
        let missing = |what: &str, hint: &str| Err(format!("{self}: {what}\nhint: {hint}").into());
        let installed = |program: &str, package: &str| match is_installed(program) {
            true => Ok(()),
            false => missing(&format!("{program} is not installed"), &format!("install {package}")),
        };
        let built = |program: &Path, cargo: &str| match program.is_file() {
            true => Ok(()),
            false => missing(
                &format!("there is no program {}", program.display()),
                &format!("cargo build --release {cargo}"),
            ),
        };
        match self.kind {
            Kind::Ext4 => installed("mkfs.ext4", "e2fsprogs"),
            Kind::Xfs => installed("mkfs.xfs", "xfsprogs"),
            Kind::Btrfs => installed("mkfs.btrfs", "btrfs-progs"),
            Kind::Varve | Kind::Served => built(&ground.varve, "-p varve-cli --bins"),
            Kind::Null => built(&ground.null, "-p varve-fuse --example null"),
            Kind::Library => Store::library_options(self).map(drop),
            Kind::Path(_) | Kind::Tmpfs => Ok(()),
        }
    }

    /// Whether it lies on a disk that is not an image of its own.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.kind, Kind::Path(_)) || self.dir.is_some()
    }

    /// Whether it is mounted by this program.
    pub(crate) fn mounts(&self) -> bool {
        match self.kind {
            Kind::Path(_) => false,
            Kind::Library => self.dir.is_none(),
            _ => true,
        }
    }
}

/// Whether a program can be found by its name.
fn is_installed(program: &str) -> bool {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&dirs).any(|dir| dir.join(program).is_file())
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_names() {
        let spec = |text: &str| text.parse::<Spec>();
        let varve = spec("varve:uring,preset=tablefs@/srv").expect("a target");
        assert_eq!((varve.kind.clone(), varve.dir.clone()), (Kind::Varve, Some("/srv".into())));
        assert_eq!(varve.options, ["uring", "preset=tablefs"]);
        assert!(varve.mounts() && !spec("library@/srv").expect("a target").mounts());
        assert_eq!(spec("./ext4").expect("a target").kind, Kind::Path("./ext4".into()));
        assert!(spec("ext5").is_err() && spec("ext4@/srv").is_err());
    }
}
