//! A metadata server: sockets and threads around any [`varve_vfs::Vfs`].
