/* What programs do over NFS, with libnfs: client PORT. Says what is wrong, and ends with the number of that. In the middle it writes a line
 * and waits for one: the server is to be killed and started again. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
/* Behind what it needs. */
#include <nfsc/libnfs.h>

static int wrong;

static void expect(long found, long wanted, const char *what, int line)
{
	if (found == wanted)
		return;
	printf("line %d: %s is %ld, not %ld\n", line, what, found, wanted);
	wrong++;
}
#define IS(call, wanted) expect((long)(call), (long)(wanted), #call, __LINE__)

static struct nfs_context *mounted(const char *port, int uid, int gid)
{
	struct nfs_context *nfs = nfs_init_context();
	char url[200];
	snprintf(url, sizeof url,
		 "nfs://127.0.0.1/?nfsport=%s&mountport=%s&uid=%d&gid=%d&auto-traverse-mounts=0&autoreconnect=-1&dircache=0",
		 port, port, uid, gid);
	struct nfs_url *parsed = nfs_parse_url_dir(nfs, url);
	if (parsed == NULL || nfs_mount(nfs, "127.0.0.1", "/") != 0) {
		printf("cannot mount: %s\n", nfs_get_error(nfs));
		exit(99);
	}
	nfs_destroy_url(parsed);
	return nfs;
}

static struct nfs_stat_64 stat_of(struct nfs_context *nfs, const char *path)
{
	struct nfs_stat_64 st;
	memset(&st, 0xff, sizeof st);
	nfs_lstat64(nfs, path, &st);
	return st;
}

static int names_in(struct nfs_context *nfs, const char *path)
{
	struct nfsdir *dir;
	int names = 0;
	if (nfs_opendir(nfs, path, &dir) != 0)
		return -1;
	while (nfs_readdir(nfs, dir) != NULL)
		names++;
	nfs_closedir(nfs, dir);
	return names;
}

int main(int argc, char **argv)
{
	const char *port = argv[argc - 1];
	struct nfs_context *root = mounted(port, 0, 0), *user = mounted(port, 1000, 1000);
	struct nfsfh *file, *kept;
	struct nfs_stat_64 st;
	char buffer[200000], path[300];
	setvbuf(stdout, NULL, _IONBF, 0);

	/* Directories and names. */
	IS(nfs_mkdir2(root, "/d", 0755), 0);
	IS(nfs_mkdir2(root, "/d", 0755), -EEXIST);
	IS(nfs_mkdir2(root, "/open", 01777), 0);
	IS(stat_of(root, "/open").nfs_mode & 07777, 01777);
	IS(nfs_rmdir(root, "/none"), -ENOENT);
	IS(nfs_mkdir2(user, "/d/x", 0755), -EACCES);
	IS(nfs_mkdir2(user, "/open/mine", 0700), 0);
	IS(stat_of(root, "/open/mine").nfs_uid, 1000);
	IS(nfs_rmdir(root, "/open"), -ENOTEMPTY);
	memset(path, 'n', sizeof path);
	path[0] = '/';
	path[257] = 0;
	IS(nfs_mkdir2(root, path, 0755), -ENAMETOOLONG);

	/* Bytes: small, large, holes, at offsets. */
	IS(nfs_create(root, "/d/small", O_RDWR | O_EXCL, 0644, &file), 0);
	IS(nfs_pwrite(root, file, 0, 5, "hello"), 5);
	IS(nfs_pwrite(root, file, 100000, 3, "end"), 3);
	IS(nfs_fsync(root, file), 0);
	IS(nfs_pread(root, file, 0, sizeof buffer, buffer), 100003);
	IS(memcmp(buffer, "hello\0\0", 7), 0);
	IS(memcmp(buffer + 99998, "\0\0end", 5), 0);
	IS(nfs_ftruncate(root, file, 3), 0);
	IS(nfs_pread(root, file, 0, sizeof buffer, buffer), 3);
	IS(nfs_close(root, file), 0);
	IS(stat_of(root, "/d/small").nfs_size, 3);
	IS(nfs_creat(root, "/d/large", 0644, &kept), 0);
	for (int block = 0; block < 40; block++) {
		memset(buffer, 'a' + block % 26, 100000);
		IS(nfs_pwrite(root, kept, block * 100000L, 100000, buffer), 100000);
	}
	IS(nfs_fsync(root, kept), 0);
	IS(nfs_pread(root, kept, 2500000, 100, buffer), 100);
	IS(buffer[0], 'z');

	/* Renames, links, symbolic links, special files. */
	IS(nfs_rename(root, "/d/small", "/open/moved"), 0);
	IS(nfs_rename(root, "/d/small", "/open/moved"), -ENOENT);
	IS(nfs_rename(root, "/open", "/open/mine/deeper"), -EINVAL);
	IS(nfs_rename(root, "/d", "/dir"), 0);
	IS(nfs_rename(user, "/open/moved", "/open/stolen"), -EPERM);
	IS(nfs_link(root, "/dir/large", "/open/again"), 0);
	IS(stat_of(root, "/open/again").nfs_nlink, 2);
	IS(stat_of(root, "/open/again").nfs_ino, stat_of(root, "/dir/large").nfs_ino);
	IS(nfs_link(root, "/dir", "/dirlink"), -EPERM);
	IS(nfs_symlink(root, "../dir/large", "/open/sym"), 0);
	IS(nfs_readlink(root, "/open/sym", path, sizeof path), 0);
	IS(strcmp(path, "../dir/large"), 0);
	IS(nfs_mknod(root, "/dir/fifo", S_IFIFO | 0600, 0), 0);
	IS(stat_of(root, "/dir/fifo").nfs_mode & S_IFMT, S_IFIFO);
	IS(nfs_mknod(user, "/open/device", S_IFCHR | 0600, 0x103), -EPERM);

	/* Attributes, and who may change them. */
	IS(nfs_chmod(root, "/open/moved", 0600), 0);
	IS(nfs_open(user, "/open/moved", O_RDONLY, &file), -EACCES);
	IS(nfs_chmod(user, "/open/moved", 0777), -EPERM);
	IS(nfs_lchown(root, "/open/moved", 1000, 1000), 0);
	IS(nfs_chmod(user, "/open/moved", 04755), 0);
	IS(nfs_lchown(user, "/open/moved", 0, 0), -EPERM);
	IS(nfs_open(user, "/open/moved", O_WRONLY, &file), 0);
	IS(nfs_pwrite(user, file, 0, 1, "H"), 1);
	IS(nfs_close(user, file), 0);
	st = stat_of(root, "/open/moved");
	IS(st.nfs_mode & 07777, 0755);
	struct timeval times[2] = { { 1000000000, 0 }, { 1100000000, 500000 } };
	IS(nfs_utimes(user, "/open/moved", times), 0);
	st = stat_of(root, "/open/moved");
	IS(st.nfs_atime, 1000000000);
	IS(st.nfs_mtime, 1100000000);
	IS(st.nfs_mtime_nsec, 500000000);
	IS(nfs_truncate(root, "/open/moved", 1 << 20), 0);
	IS(stat_of(root, "/open/moved").nfs_size, 1 << 20);
	struct statvfs room;
	IS(nfs_statvfs(root, "/", &room), 0);
	IS(room.f_bavail > 0, 1);

	/* A listing of many names. */
	IS(nfs_mkdir2(root, "/many", 0755), 0);
	for (int at = 0; at < 1500; at++) {
		snprintf(path, sizeof path, "/many/a_name_that_takes_some_room_%d", at);
		IS(nfs_creat(root, path, 0644, &file), 0);
		IS(nfs_close(root, file), 0);
	}
	IS(names_in(root, "/many"), 1502);

	/* The server is killed and comes again: handles, what was written and synced, and what was answered stay. */
	printf("killing is welcome\n");
	IS(fgets(path, sizeof path, stdin) != NULL, 1);
	IS(nfs_pread(root, kept, 3900000, 100, buffer), 100);
	IS(buffer[0], 'a' + 39 % 26);
	IS(nfs_pwrite(root, kept, 10, 5, "again"), 5);
	IS(nfs_fsync(root, kept), 0);
	IS(nfs_close(root, kept), 0);
	IS(names_in(root, "/many"), 1502);
	IS(stat_of(root, "/open/moved").nfs_size, 1 << 20);
	for (int at = 0; at < 1500; at++) {
		snprintf(path, sizeof path, "/many/a_name_that_takes_some_room_%d", at);
		IS(nfs_unlink(root, path), 0);
	}
	IS(nfs_rmdir(root, "/many"), 0);
	IS(nfs_unlink(root, "/many"), -ENOENT);
	nfs_destroy_context(user);
	nfs_destroy_context(root);
	return wrong > 90 ? 90 : wrong;
}
