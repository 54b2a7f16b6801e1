//! What comes from outside: stores that somebody else has made, and users that may not do what they try.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::inotify;

use crate::harness::{Mount, can_mount, fails, others_can_run, run, varve};
use varve_testkit::{Command, put_program, skipped, there_is};

/// Links out of a store, wherever its opener would write or read. `bent` makes one; the file beside the store
/// must come out of it unharmed, and the mount must fail and say why.
fn bent(name: &str, bend: impl FnOnce(&Path, &Path)) {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, outside) = (dir.path().join("store"), dir.path().join("outside"));
    let mountpoint = dir.path().join("mnt");
    fs::create_dir(&mountpoint).unwrap();
    fs::write(&outside, "precious").unwrap();
    run(varve().arg("format").arg(&store));
    bend(&store, &outside);
    let output = varve().arg("mount").arg(&store).arg(&mountpoint).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        run(varve().arg("umount").arg(&mountpoint));
    }
    assert_eq!(fs::read_to_string(&outside).unwrap(), "precious", "{name}");
    assert!(!output.status.success(), "{name} was followed");
    assert!(said.contains("symbolic link") || said.contains("no regular file"), "{name}: {said}");
}

fn replace(path: &Path, target: &Path) {
    if path.is_dir() {
        fs::rename(path, path.with_extension("moved")).unwrap();
    } else {
        fs::remove_file(path).unwrap();
    }
    symlink(target, path).unwrap();
}

#[test]
fn links_out_of_a_store_are_not_followed() {
    bent("LOCK", |store, outside| replace(&store.join("LOCK"), outside));
    bent("VARVE", |store, outside| replace(&store.join("VARVE"), outside));
    bent("CURRENT", |store, outside| replace(&store.join("engine/CURRENT"), outside));
    bent("engine", |store, _| replace(&store.join("engine"), &store.join("engine.moved")));
    bent("a pipe", |store, _| {
        fs::remove_file(store.join("LOCK")).unwrap();
        run(Command::new("mkfifo").arg(store.join("LOCK")));
    });
}

/// The log of a mount in the background is appended to; not through a link.
#[test]
fn the_log_is_no_way_out_and_large_files_are_none_either() {
    let Some(mount) = Mount::new() else { return };
    let outside = tempfile::tempdir().unwrap();
    fs::write(mount.path().join("large"), vec![1; 200_000]).unwrap();
    mount.unmount();
    let (log, target) = (mount.store().join("varve.log"), outside.path().join("log"));
    fs::write(&target, "precious").unwrap();
    fs::remove_file(&log).unwrap();
    symlink(&target, &log).unwrap();
    let objects = mount.store().join("objects");
    fs::rename(objects.join("0"), outside.path().join("0")).unwrap();
    symlink(outside.path().join("0"), objects.join("0")).unwrap();
    mount.mount();
    let error = fs::read(mount.path().join("large")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    mount.unmount();
    fs::remove_file(objects.join("0")).unwrap();
    fs::rename(outside.path().join("0"), objects.join("0")).unwrap();
    mount.mount();
    assert_eq!(fs::read(mount.path().join("large")).unwrap(), vec![1; 200_000]);
}

/// Whoever mounted a store with a pipe in the place of its log waited for somebody to read that.
#[test]
fn a_pipe_is_no_log() {
    let Some(mount) = Mount::new() else { return };
    mount.unmount();
    let log = mount.store().join("varve.log");
    fs::remove_file(&log).unwrap();
    run(Command::new("mkfifo").arg(&log));
    let mut in_time = Command::new("timeout");
    in_time.args(["60", env!("CARGO_BIN_EXE_varve"), "mount"]);
    run(in_time.arg(mount.store()).arg(mount.path()));
    fs::write(mount.path().join("file"), "x").unwrap();
}

/// Nobody but the owner gets at a store's files around the mount.
#[test]
fn a_store_is_closed_to_other_users() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path().join("large"), vec![1; 200_000]).unwrap();
    let (mut pending, mut seen) = (vec![mount.store()], 0);
    while let Some(path) = pending.pop() {
        // The daemon may have removed it meanwhile.
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        seen += 1;
        let is_dir = meta.is_dir();
        assert_eq!(meta.permissions().mode() & 0o077, 0, "{}", path.display());
        if is_dir {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(seen > 10, "{seen} files and directories");
}

/// Who might not look was told that there is no store, and who might not ask a daemon that it does not answer.
#[test]
fn who_may_not_is_told_so() {
    let Some(mount) = Mount::new() else { return };
    if !others_can_run() {
        return;
    }
    let told = |line: &str, place: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        let command = command.arg(env!("CARGO_BIN_EXE_varve")).args(line.split(' ')).arg(place);
        fails(command, 1)
    };
    let above = mount.store().parent().unwrap().to_owned();
    fs::set_permissions(&above, Permissions::from_mode(0o755)).unwrap();
    for place in [mount.store(), mount.path()] {
        for line in ["status", "snapshot list", "kv list", "upgrade"] {
            let said = told(line, &place);
            assert!(said.contains("Permission denied") && said.contains("ls -ld"), "{said}");
        }
    }
    let said = told("umount", &mount.path());
    assert!(said.contains("another user") && said.contains("as root"), "{said}");
    fs::set_permissions(mount.store(), Permissions::from_mode(0o755)).unwrap();
    let said = told("upgrade", &mount.path());
    assert!(
        said.contains("this user may not ask the daemon") && said.contains("only root"),
        "{said}"
    );
}

/// Where one of them did not see the other's process, as in a container, neither the daemon nor who asked it was told who the other is.
#[test]
fn a_daemon_and_who_asks_it_need_not_see_each_other() {
    let Some(mount) = Mount::new() else { return };
    // Its end is that of all that it runs.
    let apart = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).arg(varve().get_program());
        command
    };
    let asks = |of: &dyn Fn() -> Command, name: &str| {
        run(of().args(["snapshot", "create"]).arg(mount.path()).arg(name));
        run(of().args(["kv", "create"]).arg(mount.path()).arg(name));
        run(of().args(["kv", "put"]).arg(mount.path()).args([name, "key", "value"]));
    };
    asks(&apart, "of_one_outside");
    mount.unmount();
    let mut mounted = apart();
    mounted.args(["mount", "-f", "-v"]).arg(mount.store()).arg(mount.path());
    let mut mounted = mounted.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    mounted.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    asks(&varve, "of_one_within");
    mount.unmount();
    assert!(mounted.wait().unwrap().success());
}

/// Runs `script` in `dir` as user `uid` with `groups`, the first of them its own.
fn as_user(dir: &Path, uid: u32, groups: &str, script: &str) -> bool {
    let gid = groups.split(',').next().unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &uid.to_string(), "--regid", gid, "--groups", groups, "sh", "-c"]);
    command.arg(format!("{{ {script}; }} >/dev/null 2>&1")).current_dir(dir);
    command.status().unwrap().success()
}

/// What others may not do, on small and large files alike. Each line is a command that must fail as user 1001 of
/// group 1001.
const FORBIDDEN: &str = "\
cat private
cat private-large
dd if=private-large of=/dev/null iflag=direct bs=4096 count=1
echo x >>private
echo x >>private-large
echo x >readable
echo x >>readable-large
truncate -s 0 readable
truncate -s 0 readable-large
chmod 666 readable
chmod 666 readable-large
chown 1001 readable
chgrp 1001 readable
touch -d 2001-01-01 readable
touch private
setfattr -n user.x -v y readable
getfattr -n user.secret private
ls closed
cat closed/inside
stat closed/inside
cd closed
touch closed/new
touch listed/new
mkdir listed/new
rm -f listed/inside
mv listed/inside listed/other
ln listed/inside listed/link
ln -s x listed/link
mknod listed/pipe p
cat listed/inside
rm -f sticky/owned
mv sticky/owned sticky/other
mv sticky/owned own
mv own-file sticky/owned
rmdir sticky/dir
./script
cat group
mknod own/device c 1 3
chown 1000 own-file
chgrp 1000 own-file
fallocate -l 100 readable
";

/// And what they may.
const ALLOWED: &str = "\
cat readable
cat readable-large
stat private
ls listed
stat listed/inside
touch sticky/mine && rm sticky/mine
touch sticky/mine && mv sticky/mine sticky/too && rm sticky/too
ln readable-and-writable own/link && rm own/link
echo x >>readable-and-writable
touch readable-and-writable
echo x >own/file && chmod 600 own/file && rm own/file
cat link-to-readable
";

fn lay_out(dir: &Path) {
    let file = |name: &str, mode: u32, len: usize, owner: u32| {
        let path = dir.join(name);
        fs::write(&path, vec![b'#'; len]).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    };
    let directory = |name: &str, mode: u32, owner: u32| {
        fs::create_dir(dir.join(name)).unwrap();
        chown(dir.join(name), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
    };
    for (name, mode, owner) in [
        ("closed", 0o700, 1000),
        ("listed", 0o755, 1000),
        ("sticky", 0o1777, 0),
        ("own", 0o755, 1001),
    ] {
        directory(name, mode, owner);
    }
    directory("sticky/dir", 0o755, 1000);
    for (name, mode, len, owner) in [
        ("private", 0o600, 10, 1000),
        ("private-large", 0o600, 200_000, 1000),
        ("readable", 0o644, 10, 1000),
        ("readable-large", 0o644, 200_000, 1000),
        ("readable-and-writable", 0o666, 10, 1000),
        ("closed/inside", 0o644, 10, 1000),
        ("listed/inside", 0o600, 10, 1000),
        ("sticky/owned", 0o666, 10, 1000),
        ("own-file", 0o644, 10, 1001),
        ("script", 0o644, 10, 1000),
        ("group", 0o640, 10, 1000),
    ] {
        file(name, mode, len, owner);
    }
    let (secret, flags) = (dir.join("private"), rustix::fs::XattrFlags::empty());
    rustix::fs::setxattr(secret, "user.secret", b"x", flags).unwrap();
    for tool in ["setfattr", "getfattr"] {
        // Without it the line fails for another reason.
        there_is(tool);
    }
    symlink("readable", dir.join("link-to-readable")).unwrap();
}

#[test]
fn users_can_do_what_modes_allow_and_nothing_else() {
    let Some(mount) = Mount::new() else { return };
    let plain = tempfile::tempdir().unwrap();
    fs::set_permissions(plain.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(mount.path().parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    // The same expectations on the machine's own file system, which shows that they are the platform's.
    for dir in [mount.path(), plain.path().to_path_buf()] {
        lay_out(&dir);
        for line in FORBIDDEN.lines() {
            assert!(!as_user(&dir, 1001, "1001", line), "allowed on {}: {line}", dir.display());
        }
        for line in ALLOWED.lines() {
            assert!(as_user(&dir, 1001, "1001", line), "refused on {}: {line}", dir.display());
        }
        assert!(
            as_user(&dir, 1001, "1001,1000", "cat group"),
            "a group besides the own one counts"
        );
        assert!(as_user(&dir, 1000, "1000", "cat private && cat private-large && rm sticky/owned"));
        let mut opened = Command::new("cat");
        let opened = opened.arg(dir.join("private-large")).uid(1000).gid(1000).output().unwrap();
        assert_eq!(opened.stdout.len(), 200_000);
    }
}

/// nosuid, nodev and noexec are the kernel's to keep; they must reach it.
#[test]
fn flags_of_the_mount_are_honoured() {
    let Some(mount) = Mount::new() else { return };
    put_program("/bin/true", mount.path().join("true"));
    put_program("/usr/bin/id", mount.path().join("id"));
    fs::set_permissions(mount.path().join("id"), Permissions::from_mode(0o4755)).unwrap();
    run(Command::new("mknod").arg(mount.path().join("null")).args(["c", "1", "3"]));
    fs::set_permissions(mount.path().parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let tries = || {
        let id = Command::new(mount.path().join("id")).arg("-u").uid(1000).gid(1000).output();
        (
            Command::new(mount.path().join("true")).status().is_ok_and(|status| status.success()),
            id.ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            fs::read(mount.path().join("null")).is_ok(),
        )
    };
    assert_eq!(tries(), (true, Some("0".to_owned()), true));
    mount.unmount();
    run(varve().args(["mount", "-o", "nosuid,nodev"]).arg(mount.store()).arg(mount.path()));
    assert_eq!(tries(), (true, Some("1000".to_owned()), false));
    mount.unmount();
    run(varve().args(["mount", "-o", "noexec"]).arg(mount.store()).arg(mount.path()));
    assert_eq!(tries(), (false, None, true));
}

/// Without allow_other nobody else gets in; and with it, root of a user namespace is but the user who made it.
#[test]
fn other_users_and_namespaces_are_kept_out() {
    let Some(mount) = Mount::new() else { return };
    fs::set_permissions(mount.path().parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    fs::write(mount.path().join("root-only"), "x").unwrap();
    fs::set_permissions(mount.path().join("root-only"), Permissions::from_mode(0o600)).unwrap();
    let in_namespace = "unshare -Ur sh -c 'cat root-only || rm -f root-only || chown 0 root-only'";
    let made = as_user(&mount.path(), 1000, "1000", "unshare -Ur true");
    if made {
        assert!(!as_user(&mount.path(), 1000, "1000", in_namespace));
    } else {
        skipped(
            "what other users see from namespaces of their own: this machine has none for users",
        );
    }
    mount.unmount();
    run(varve().args(["mount", "-o", "noallow_other"]).arg(mount.store()).arg(mount.path()));
    let root_sees = fs::read(mount.path().join("root-only")).is_ok();
    let stranger = format!("stat {0}/root-only || ls {0}", mount.path().display());
    assert!(root_sees && !as_user(Path::new("/"), 1000, "1000", &stranger));
}

/// The way to a transaction does not lead through the directories above what it shows.
#[test]
fn a_transaction_lets_nobody_past_a_directory() {
    let Some(mount) = Mount::new() else { return };
    let dir = mount.path();
    fs::set_permissions(dir.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let begun = |name: &str, group: u32, mode: u32| {
        let (above, shown) = (dir.join(name), dir.join(name).join("shown"));
        fs::create_dir_all(&shown).unwrap();
        fs::write(shown.join("file"), "x").unwrap();
        chown(&above, None, Some(group)).unwrap();
        fs::set_permissions(&above, Permissions::from_mode(mode)).unwrap();
        let begun = run(varve().args(["txn", "begin"]).arg(&shown));
        let view = String::from_utf8(begun.stdout).unwrap();
        assert!(fs::read(Path::new(view.trim()).join("file")).is_ok());
        let seen = as_user(Path::new("/"), 1000, "1000", &format!("cat {}/file", view.trim()));
        assert_eq!(
            seen,
            as_user(Path::new("/"), 1000, "1000", &format!("cat {}/file", shown.display()))
        );
        seen
    };
    assert!(begun("open", 0, 0o755));
    assert!(!begun("private", 0, 0o700));
    assert!(!begun("of-a-group", 0, 0o750));
    // For members of the group its bits hold, and not those of others: they got in.
    assert!(!begun("against-a-group", 1000, 0o705));
}

/// What a user does on a mount of his own by fusermount, in a mount namespace in which he may open the device. `ok` and `no` say what
/// must go and what must not.
const OF_AN_ORDINARY_USER: &str = r#"
ok() { "$@" >out 2>err || { echo "$* failed:" >&2; cat out err >&2; exit 1; }; }
no() { if "$@" >out 2>err; then echo "$* went:" >&2; cat out >&2; exit 1; fi; }
told() { grep -q -e "$1" out err || { echo "not told: $1" >&2; cat out err >&2; exit 1; }; }
silent() { ! test -s out || { echo "told for nothing:" >&2; cat out >&2; exit 1; }; }
"$VARVE" format store >/dev/null
ok "$VARVE" mount store mnt
trap '"$VARVE" umount mnt >/dev/null' EXIT
told fusermount
echo one >mnt/file
mkdir mnt/dir
for dir in mnt mnt/dir; do
    no "$VARVE" txn begin $dir
    silent
    told 'cannot show a transaction'
    told 'hint: have root mount the store.*--map-current-user'
    no "$VARVE" txn begin --isolation serializable --json $dir
    silent
    no python3 -c 'import os, sys; os.getxattr(sys.argv[1], "varve.txn-begin")' $dir
    told 'not supported'
    no python3 -c 'import fcntl, os, sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x80105601, bytes(16))' $dir
    told 'not supported'
    no "$VARVE" txn run $dir -- true
    told 'cannot show a transaction'
done
ok "$VARVE" txn list mnt
silent
ok "$VARVE" snapshot create mnt before
test "$(cat out)" = before
told 'note: .*cannot show a snapshot'
ok "$VARVE" snapshot create --json mnt also
told '"path": *null'
ok "$VARVE" snapshot list mnt
told '^before  -$'
no ls mnt/.varve/snapshots/before
told 'not supported'
no "$VARVE" clone mnt/.varve/snapshots/before/file mnt/copy
# What needs no directory works.
echo two >mnt/file
ok "$VARVE" snapshot diff mnt before
told 'M.*file'
"$VARVE" snapshot send mnt before >stream
ok "$VARVE" snapshot rollback mnt before
test "$(cat mnt/file)" = one
"$VARVE" umount mnt >/dev/null
# What the hint says, to the letter.
trap - EXIT
export VARVE
ok unshare --user --map-current-user --mount --keep-caps sh -ec '
    "$VARVE" mount store mnt
    trap "\"$VARVE\" umount mnt" EXIT
    txn=$("$VARVE" txn begin mnt)
    echo three >"$txn/file"
    test "$(cat mnt/file)" = one
    test "$(cat mnt/.varve/snapshots/before/file)" = one
    "$VARVE" txn commit mnt "$txn"
    test "$(cat mnt/file)" = three'
"#;

/// On an ordinary user's mount `txn begin` and `snapshot create` succeeded, and printed directories that were EIO.
#[test]
fn an_ordinary_users_mount_leads_to_no_directory_that_is_none() {
    if !can_mount() || !others_can_run() || !there_is("fusermount3") || !there_is("python3") {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    fs::create_dir(at("mnt")).unwrap();
    for path in [base.path(), &at("mnt")] {
        chown(path, Some(65_534), Some(65_534)).unwrap();
    }
    let namespace = r#"mknod "$1" c 10 229 && chmod 666 "$1" && mount --bind "$1" /dev/fuse || exit 77
        cd "$2" && exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -euc "$3""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", namespace, "sh"]).arg(at("fuse")).arg(base.path());
    command.arg(OF_AN_ORDINARY_USER).env("VARVE", env!("CARGO_BIN_EXE_varve"));
    let output = command.output().unwrap();
    if output.status.code() == Some(77) {
        return skipped("there is no making of a device that users may open");
    }
    let said = [&output.stdout[..], &output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// Everybody was told the names of directories with limits, through directories that only others may search.
#[test]
fn limits_below_a_directory_are_told_to_who_may_set_them_alone() {
    let Some(mount) = Mount::new() else { return };
    there_is("getfattr");
    let dir = mount.path();
    fs::set_permissions(dir.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let (closed, shown) = (dir.join("closed"), dir.join("shown"));
    [&closed.join("inside"), &shown].iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    for limited in [&dir, &shown, &closed.join("inside")] {
        run(varve().args(["quota", "set", "--bytes", "1G"]).arg(limited));
    }
    let told = |dir: &Path, uid: u32| {
        let told = ["varve.limits", "varve.limits.0"].map(|name| {
            let mut command = Command::new("getfattr");
            command.args(["--only-values", "-n", name]).arg(dir).uid(uid).gid(uid);
            let json: serde_json::Value =
                serde_json::from_slice(&run(&mut command).stdout).unwrap();
            let limits = json.as_array().unwrap().iter();
            limits.map(|limit| limit["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        });
        assert_eq!(told[0], told[1]);
        told[0].clone()
    };
    assert_eq!(told(&dir, 0), ["/", "/closed/inside", "/shown"]);
    assert_eq!(told(&dir, 1000), ["/"]);
    assert_eq!(told(&shown, 1000), ["/", "/shown"], "those that hold there");
}

/// The daemon mounted views, and took their mounts away, by the path that it was started with: whoever owned a directory above
/// could have it do that elsewhere.
#[test]
fn a_path_that_leads_elsewhere_by_now_is_not_followed() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    let (store, home, dir) = (at("store"), at("home"), at("home/above/mnt"));
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
    chown(&home, Some(1000), Some(1000)).unwrap();
    run(varve().arg("format").arg(&store));
    run(varve().arg("mount").arg(&store).arg(&dir));
    fs::write(dir.join("file"), "x").unwrap();
    let begin = || {
        let begun = run(varve().args(["txn", "begin"]).arg(&dir)).stdout;
        let view = String::from_utf8(begun).unwrap();
        Path::new(view.trim()).file_name().unwrap().to_str().unwrap().to_owned()
    };
    let (attached, later) = (begin(), begin());
    let in_txn = |mount: &Path, id: &str| mount.join(".varve/txn").join(id).join("file");
    assert_eq!(fs::read(in_txn(&dir, &attached)).unwrap(), b"x");
    // Of root, with the names that the daemon will look for.
    let precious = ["attached", "later"].map(|name| at("elsewhere").join(name));
    for (id, path) in [&attached, &later].into_iter().zip(&precious) {
        let txn = at("elsewhere/mnt/.varve/txn");
        fs::create_dir_all(txn.join(id)).unwrap();
        symlink(txn.join(id), path).unwrap();
    }
    run(Command::new("mount").args(["-t", "tmpfs", "varve-test"]).arg(&precious[0]));
    precious.iter().for_each(|path| fs::write(path.join("precious"), "").unwrap());
    assert!(as_user(&home, 1000, "1000", "mv above moved && ln -s ../elsewhere above"));
    let moved = at("home/moved/mnt");
    let reached = fs::read(in_txn(&moved, &later));
    let aborted = varve().args(["txn", "abort"]).arg(&store).arg(&attached).output().unwrap();
    let left: Vec<bool> = precious.iter().map(|path| path.join("precious").exists()).collect();
    // As it was.
    assert!(as_user(&home, 1000, "1000", "rm above && mv moved above"));
    let works = fs::read(in_txn(&dir, &later));
    run(varve().args(["txn", "abort"]).arg(&store).arg(&later));
    let listed = run(varve().args(["txn", "list"]).arg(&store)).stdout;
    let _ = rustix::mount::unmount(&precious[1], rustix::mount::UnmountFlags::DETACH);
    let _ = rustix::mount::unmount(&precious[0], rustix::mount::UnmountFlags::DETACH);
    run(varve().arg("umount").arg(&dir));
    assert_eq!(left, [true, true]);
    assert_eq!(reached.unwrap_err().raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    let said = String::from_utf8_lossy(&aborted.stderr);
    assert!(said.contains("does not lead to the mount any more"), "{said}");
    assert_eq!(works.unwrap(), b"x");
    assert!(String::from_utf8_lossy(&listed).contains(&attached), "it has not ended");
}

/// Views that were mounted after `mount -o remount` had the flags with which the daemon had begun, those that were mounted before it
/// kept theirs, and what goes past the mount still changed everything.
#[test]
fn flags_that_are_changed_hold_for_views_and_all_other_ways() {
    let Some(mount) = Mount::new() else { return };
    let dir = mount.path();
    put_program("/bin/true", dir.join("true"));
    run(varve().args(["kv", "create"]).arg(&dir).arg("tags"));
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("was"));
    let [one, two, before] = [0; 3].map(|_| {
        let begun = run(varve().args(["txn", "begin"]).arg(&dir)).stdout;
        PathBuf::from(String::from_utf8(begun).unwrap().trim())
    });
    let snapshot = dir.join(".varve/snapshots/was");
    assert!(snapshot.join("true").exists());
    fs::write(before.join("new"), "x").unwrap();
    let remount = |options: &str| {
        let options = format!("rw,remount,{options}");
        run(varve().arg(mount.store()).arg(&dir).args(["-o", &options]));
    };
    remount("ro,nosuid,nodev,noexec");
    let is_refused = |done: std::io::Result<()>, why: rustix::io::Errno| {
        assert_eq!(done.unwrap_err().raw_os_error(), Some(why.raw_os_error()));
    };
    for view in [&one, &before] {
        is_refused(fs::write(view.join("new"), "y"), rustix::io::Errno::ROFS);
        let ran = Command::new(view.join("true")).status();
        is_refused(ran.map(drop), rustix::io::Errno::ACCESS);
    }
    let id = two.file_name().unwrap().to_str().unwrap();
    let changes: [&[&str]; 10] = [
        &["txn", "begin"],
        &["txn", "commit", id],
        &["txn", "abort", id],
        &["snapshot", "create", "s"],
        &["snapshot", "rollback", "s"],
        &["snapshot", "receive"],
        &["snapshot", "receive", "--discard"],
        &["kv", "create", "more"],
        &["kv", "put", "tags", "k", "v"],
        &["kv", "drop", "tags"],
    ];
    for change in changes {
        let output = varve().args(&change[..2]).arg(&dir).args(&change[2..]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("read-only"), "{change:?}: {said}");
    }
    assert_eq!(run(varve().args(["kv", "scan"]).arg(&dir).arg("tags")).stdout, b"");
    remount("exec");
    is_refused(fs::write(snapshot.join("new"), "x"), rustix::io::Errno::ROFS);
    for view in [&one, &two, &before] {
        fs::write(view.join("new"), "x").unwrap();
    }
    // One that is being written to cannot be made read-only, which is said.
    let writes = fs::File::create(before.join("written")).unwrap();
    let mut command = varve();
    command.arg(mount.store()).arg(&dir).args(["-o", "rw,remount,ro"]);
    let said = fails(&mut command, 32);
    assert!(
        said.contains("a snapshot or transaction within it is not") && said.contains("busy"),
        "{said}"
    );
    drop(writes);
    remount("rw");
    assert!(Command::new(two.join("true")).status().unwrap().success());
    run(varve().args(["txn", "commit"]).arg(&dir).arg(id));
    run(varve().args(["kv", "put"]).arg(&dir).args(["tags", "k", "v"]));
    assert_eq!(fs::read(dir.join("new")).unwrap(), b"x");
}

/// A view that was mounted while the flags changed kept the old ones. Chance says whether one is.
#[test]
fn flags_that_change_while_views_come_hold_for_all_of_them() {
    let Some(mount) = Mount::new() else { return };
    let dir = mount.path();
    let names: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    for name in &names {
        run(varve().args(["snapshot", "create"]).arg(&dir).arg(name));
    }
    let begun = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let views_come = scope.spawn(|| {
            begun.wait();
            for name in &names {
                fs::metadata(dir.join(".varve/snapshots").join(name).join(".")).unwrap();
            }
        });
        begun.wait();
        run(varve().arg(mount.store()).arg(&dir).args(["-o", "rw,remount,nosuid"]));
        views_come.join().unwrap();
    });
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let within = format!(" {}/", dir.display());
    let views: Vec<&str> = mounts.lines().filter(|line| line.contains(&within)).collect();
    let old: Vec<_> = views.iter().filter(|line| !line.contains("nosuid")).collect();
    assert!(!views.is_empty() && old.is_empty(), "{} of {}: {old:?}", old.len(), views.len());
}

/// A store, mounted on `above/mnt`, and another mount with a file on `elsewhere/mnt`, to which that path leads once
/// [`lead_elsewhere`] is called; all in `base`.
fn with_another_mount(base: &Path) -> [PathBuf; 2] {
    let [store, dir, other] = ["store", "above/mnt", "elsewhere/mnt"].map(|name| base.join(name));
    [&dir, &other].iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    run(varve().arg("format").arg(&store));
    run(varve().arg("mount").arg(&store).arg(&dir));
    run(Command::new("mount").args(["-t", "tmpfs", "varve-test"]).arg(&other));
    fs::write(other.join("precious"), "").unwrap();
    [store, other]
}

/// Puts a link to `elsewhere` in the place of `above`, which is `moved` then.
fn lead_elsewhere(base: &Path) {
    fs::rename(base.join("above"), base.join("moved")).unwrap();
    symlink("elsewhere", base.join("above")).unwrap();
}

/// Whether the file of the other mount is there still; takes that mount away.
fn is_left(other: &Path) -> bool {
    let left = other.join("precious").exists();
    let _ = rustix::mount::unmount(other, rustix::mount::UnmountFlags::DETACH);
    left
}

/// Nor when the daemon is told to end: it took away what was at the path by then.
#[test]
fn a_daemon_that_ends_takes_its_own_mount_away_alone() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    let [store, other] = with_another_mount(base.path());
    lead_elsewhere(base.path());
    let status = run(varve().args(["status", "--json"]).arg(&store)).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    let pid = i32::try_from(status["holder"]["pid"].as_i64().unwrap()).unwrap();
    let daemon = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
    let log = store.join("varve.log");
    let noticed = || fs::read_to_string(&log).unwrap().contains("nothing is mounted on");
    varve_testkit::eventually("it does what it was told", noticed);
    let left = is_left(&other);
    run(varve().arg("umount").arg(at("moved/mnt")));
    assert!(left);
}

/// Nor does who takes it away from outside: by force went what was at the path when the mount had been looked at.
#[test]
fn a_path_that_is_led_elsewhere_meanwhile_is_not_unmounted() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    let [store, other] = with_another_mount(base.path());
    let opened = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&opened, store.join("LOCK"), inotify::WatchFlags::OPEN).unwrap();
    let taken = std::thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            rustix::io::read(&opened, &mut [0; 4096]).unwrap();
            lead_elsewhere(base.path());
        });
        let taken = varve().args(["umount", "--force"]).arg(at("above/mnt")).output().unwrap();
        // If it has not looked who holds the store.
        drop(fs::File::open(store.join("LOCK")).unwrap());
        swapping.join().unwrap();
        taken.status.success()
    });
    let left = is_left(&other);
    if !taken || !left {
        run(varve().arg("umount").arg(at("moved/mnt")));
    }
    assert!(left);
}

/// Nor in the directory of its store: its sockets were removed by that one's path.
#[test]
fn a_daemon_removes_nothing_but_its_own_sockets() {
    if !can_mount() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    let (store, dir, other) = (at("above/store"), at("mnt"), at("elsewhere/store"));
    [&at("above"), &dir, &other].iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    run(varve().arg("format").arg(&store));
    run(varve().arg("mount").arg(&store).arg(&dir));
    ["control", "kv"].iter().for_each(|name| fs::write(other.join(name), "precious").unwrap());
    lead_elsewhere(base.path());
    run(varve().arg("umount").arg(&dir));
    let moved = at("moved/store");
    varve_testkit::eventually("it is closed", || !moved.join("control").exists());
    varve_testkit::eventually("it is closed", || !moved.join("kv").exists());
    for name in ["control", "kv"] {
        assert_eq!(fs::read(other.join(name)).unwrap(), b"precious");
    }
    run(varve().arg("fsck").arg(&moved));
}
