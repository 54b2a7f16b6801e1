//! A [`varve_vfs::Vfs`] over metadata servers.
