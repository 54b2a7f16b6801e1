//! Calls about directory trees and about the whole file system.

use bytes::Bytes;
use varve_vfs::{FsError, TreeLimits};
use varve_wire::Request;
use varve_wire::answer::{Answer, Quota};

use super::{Call, Served, done};

impl Call<'_> {
    /// Makes a call about a tree or the whole file system.
    pub(super) fn whole(&self, request: &Request<'_>) -> Served {
        let vfs = self.vfs();
        match *request {
            Request::FsyncDir { node } => {
                vfs.fsync_dir(self.node(node)?)?;
                done()
            }
            Request::Sync => {
                vfs.sync()?;
                done()
            }
            Request::Statfs => {
                let s = vfs.statfs()?;
                let (block, name) = (s.block_bytes.into(), s.name_bytes_max.into());
                let (free, available) = (s.blocks_free, s.blocks_available);
                let all = [block, s.blocks, free, available, s.files, s.files_free, name];
                Ok((Answer::StatFs(all), Bytes::new()))
            }
            Request::Usage { node } => {
                let ino = self.node(node)?;
                let usage = self.settled(|| vfs.usage(ino))?;
                Ok((Answer::Usage([usage.bytes, usage.files, usage.dirs]), Bytes::new()))
            }
            Request::SetLimits { node, bytes, inodes } => {
                self.writable()?;
                let ino = self.node(node)?;
                self.settled(|| vfs.set_limits(ino, TreeLimits { bytes, inodes }))?;
                done()
            }
            Request::Quotas { node, below } => {
                let ino = self.node(node)?;
                let quotas =
                    self.settled(|| if below { vfs.quotas(ino) } else { vfs.quotas_of(ino) })?;
                let quotas = quotas.into_iter().map(|quota| Quota {
                    path: quota.path,
                    bytes: quota.limits.bytes,
                    inodes: quota.limits.inodes,
                    usage: [quota.usage.bytes, quota.usage.files, quota.usage.dirs],
                });
                Ok((Answer::Quotas(quotas.collect()), Bytes::new()))
            }
            Request::Recovered => {
                self.session.recovered();
                done()
            }
            Request::Status => Ok((Answer::Done, vfs.status_json().into_bytes().into())),
            _ => Err(FsError::NotImplemented.into()),
        }
    }
}
