//! A server of a store on a simulated machine.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use varve_client::Client;
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::fsck::{Finding, Severity};
use varve_fs::{FormatOptions, MountOptions, VarveFs, format};
use varve_server::{Options, Policy, Server};
use varve_vfs::Vfs;

const STORE: &str = "/store";

/// A store and its server.
pub(crate) struct Served {
    pub(crate) fs: Arc<VarveFs>,
    pub(crate) server: Server,
}

/// A machine with an empty store.
pub(crate) fn machine(seed: u64) -> Arc<dyn Env> {
    let machine: Arc<dyn Env> = SimEnv::new(seed);
    format(&machine, Path::new(STORE), &FormatOptions::default()).unwrap();
    machine
}

pub(crate) fn options(epoch: u32) -> Options {
    Options {
        file_system: [1, 2],
        epoch,
        leases: Policy::Rate { ms_max: 500 },
        session: Duration::from_secs(30),
        token: Vec::new(),
        read_only: false,
        slow: Duration::from_secs(3600),
    }
}

/// Opens the store as one machine alone does, which removes what waited for a server, and checks that nothing is left.
pub(crate) fn clean_up(machine: &Arc<dyn Env>) {
    let fs = VarveFs::open(Arc::clone(machine), Path::new(STORE), MountOptions::default()).unwrap();
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
    fs.close().unwrap();
}

impl Served {
    pub(crate) fn start(machine: &Arc<dyn Env>, options: Options) -> Served {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Served::on(machine, listener, options)
    }

    pub(crate) fn on(machine: &Arc<dyn Env>, listener: TcpListener, options: Options) -> Served {
        let mount =
            MountOptions { keep_orphans: true, many_front_ends: true, ..MountOptions::default() };
        let fs = VarveFs::open(Arc::clone(machine), Path::new(STORE), mount);
        let fs = Arc::new(fs.unwrap());
        let vfs: Arc<dyn Vfs> = Arc::<VarveFs>::clone(&fs);
        let server = Server::start(vfs, None, listener, options).unwrap();
        Served { fs, server }
    }

    /// Ends the server, and checks the file system, in which nothing waits for anybody.
    pub(crate) fn end(self) {
        let left = self.end_for_another();
        assert_eq!(left, []);
    }

    /// Ends the server, and checks the file system. Returns what waits for the next server: removed files that are open.
    pub(crate) fn end_for_another(self) -> Vec<Finding> {
        self.server.stop();
        drop(self.server);
        self.fs.sync().unwrap();
        let report = self.fs.check(&mut |_| ()).unwrap();
        let wrong = |found: &&Finding| found.severity() != Severity::Unfinished;
        assert_eq!(report.findings.iter().find(wrong), None);
        Arc::into_inner(self.fs).unwrap().close().unwrap();
        report.findings
    }
}

pub(crate) fn client_options(address: SocketAddr, number: u64) -> varve_client::Options {
    varve_client::Options {
        address: address.to_string(),
        path: Vec::new(),
        name: format!("client {number}"),
        client: [7, number],
        token: Vec::new(),
        read_only: false,
        wait_max: None,
    }
}

pub(crate) fn connect(address: SocketAddr, number: u64) -> Client {
    Client::connect(client_options(address, number)).unwrap()
}
