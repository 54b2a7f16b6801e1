//! How long clients may keep what they learn.

use std::sync::Arc;
use std::time::Duration;

use varve_client::{Client, Forgetful};
use varve_server::Policy;
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, Entry, Keep, Vfs};

use crate::support::{Served, client_options, connect, machine, options};

/// A front end that keeps nothing, and says that it could.
struct Keeps;

impl Forgetful for Keeps {
    fn inode_changed(&self, _: InodeId) {}

    fn names_changed(&self) -> bool {
        true
    }
}

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

/// For how long a client may keep a name, and the attributes.
fn kept(entry: &Entry) -> [Duration; 2] {
    [entry.keep, entry.attr.keep].map(|keep| match keep {
        Keep::For(time) => time,
        other => panic!("{other:?}"),
    })
}

/// By depth what is in the root directory has the longest lease, and what is deeper a shorter one, as a client sees it from its own root.
#[test]
fn leases_by_depth_are_shorter_deeper_in_the_tree() {
    let machine = machine(1);
    let longest = Duration::from_secs(60);
    let leases = Policy::Depth { ms_max: 60_000 };
    let served = Served::start(&machine, varve_server::Options { leases, ..options(1) });
    let made = ["a", "b", "c"].iter().try_fold(InodeId::ROOT, |dir, it| {
        served.fs.mkdir(Caller::ROOT, dir, name(it), 0o755).map(|made| made.attr.ino)
    });
    made.unwrap();
    let address = served.server.address();
    let below = varve_client::Options { path: b"/a".to_vec(), ..client_options(address, 2) };
    for (client, names) in [
        (connect(address, 1), &["a", "b", "c"][..]),
        (Client::connect(below).unwrap(), &["b", "c"]),
    ] {
        client.set_front_end(Arc::new(Keeps));
        let mut dir = client.root();
        for (above, it) in names.iter().enumerate() {
            let found = client.lookup(dir, name(it)).unwrap();
            for time in kept(&found) {
                // A sixteenth is left out for clocks that differ, and some time has passed.
                let lease = longest / (above as u32 + 1);
                assert!(time <= lease && time > lease * 3 / 5, "{it}: {time:?} of {lease:?}");
            }
            dir = found.attr.ino;
        }
    }
    served.end();
}
