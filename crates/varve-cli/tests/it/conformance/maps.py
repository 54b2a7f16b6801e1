"""What mmap does at its edges, on the directory given: prints each case that came out otherwise."""

import errno
import mmap
import os
import signal
import sys

PAGE = mmap.PAGESIZE
cases = []
os.chdir(sys.argv[1])


def case(wanted):
    """A case: the errno that must come of it, or None."""
    return lambda body: cases.append((body.__name__.replace("_", " "), wanted, body))


def fresh(size, name="file"):
    """A new file of `size` bytes, open for reading and writing."""
    if os.path.lexists(name):
        os.unlink(name)
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, bytes(i % 251 for i in range(size)), 0)
    return fd


def shared(fd, length=0, **more):
    return mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, **more)


def dies(body):
    """Whether `body`, in a process of its own, ends by SIGBUS."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGBUS


@case(errno.EACCES)
def shared_for_writing_of_what_is_open_for_reading():
    fresh(10)
    shared(os.open("file", os.O_RDONLY), 10)


@case(None)
def private_for_writing_of_what_is_open_for_reading():
    fresh(10)
    fd = os.open("file", os.O_RDONLY)
    m = mmap.mmap(fd, 10, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    m[0:2] = b"xy"
    assert os.pread(fd, 2, 0) == b"\0\1"


@case(errno.EACCES)
def of_what_is_open_for_writing_only():
    fresh(10)
    mmap.mmap(os.open("file", os.O_WRONLY), 10, mmap.MAP_SHARED, mmap.PROT_READ)


@case(errno.ENODEV)
def of_a_directory():
    mmap.mmap(os.open(".", os.O_RDONLY), 10, mmap.MAP_SHARED, mmap.PROT_READ)


@case(errno.EBADF)
def of_a_path_descriptor():
    fresh(10)
    mmap.mmap(os.open("file", os.O_PATH), 10, mmap.MAP_SHARED, mmap.PROT_READ)


@case(errno.EINVAL)
def at_an_odd_offset():
    shared(fresh(PAGE * 2), PAGE, offset=100)


@case(None)
def beyond_the_last_page():
    fd = fresh(PAGE * 2)
    m = mmap.mmap(fd, PAGE * 2, mmap.MAP_SHARED, mmap.PROT_READ)
    os.ftruncate(fd, 10)
    assert dies(lambda: m[PAGE])


@case(None)
def what_truncation_takes_away():
    fd = fresh(PAGE * 3)
    m = shared(fd)
    assert m[PAGE * 2] == PAGE * 2 % 251
    os.ftruncate(fd, 10)
    assert dies(lambda: m[PAGE])
    assert m[0:12] == bytes(range(10)) + b"\0\0"
    os.ftruncate(fd, PAGE * 3)
    assert m[PAGE * 2] == 0 and m[10] == 0


@case(None)
def the_rest_of_the_last_page_is_zero_and_stays_out_of_the_file():
    fd = fresh(PAGE)
    m = shared(fd, PAGE)
    os.ftruncate(fd, 10)
    assert m[10:PAGE] == bytes(PAGE - 10)
    m[10:20] = b"x" * 10
    m.flush()
    assert os.fstat(fd).st_size == 10
    os.ftruncate(fd, 30)
    assert os.pread(fd, 20, 10) == bytes(20)


@case(None)
def read_and_write_agree_with_the_map_at_once():
    for size in (10, 600, 40_000, 65_536, 200_000):
        fd = fresh(size)
        m = shared(fd)
        m[size - 2 : size] = b"ab"
        assert os.pread(fd, 2, size - 2) == b"ab", size
        os.pwrite(fd, b"cd", 0)
        assert m[0:2] == b"cd", size


@case(None)
def a_map_outlives_descriptor_and_name():
    for size in (10, 40_000, 200_000):
        fd = fresh(size)
        m = shared(fd)
        os.close(fd)
        os.unlink("file")
        m[0:2] = b"xy"
        m.flush()
        assert m[0:3] == b"xy\2", size


@case(None)
def processes_share_it():
    fd = fresh(100_000)
    m = shared(fd)
    pid = os.fork()
    if pid == 0:
        other = shared(os.open("file", os.O_RDWR))
        other[50_000:50_003] = b"abc"
        os._exit(0)
    os.waitpid(pid, 0)
    assert m[50_000:50_003] == b"abc"


@case(None)
def a_file_that_grows_under_its_map():
    for size, grown in ((10, 300), (10, 5_000), (600, 200_000), (40_000, 100_000), (65_536, 65_537)):
        fd = fresh(size)
        m = shared(fd)
        m[0:2] = b"xy"
        other = os.open("file", os.O_RDWR)
        os.pwrite(other, b"end", grown - 3)
        assert os.pread(other, 3, 0) == b"xy\2", (size, grown)
        m[2:4] = b"zw"
        m.flush()
        assert os.pread(other, 4, 0) == b"xyzw", (size, grown)
        big = shared(other)
        assert big[grown - 3 : grown] == b"end" and big[0:4] == b"xyzw", (size, grown)
        m[0:1] = b"Q"
        assert big[0:1] == b"Q", (size, grown)
        os.fsync(fd)
        del m, big
        os.close(fd)
        os.close(other)
        with open("file", "rb") as f:
            found = f.read()
        assert len(found) == grown and found[:4] == b"Qyzw" and found[-3:] == b"end", (size, grown)


@case(None)
def a_private_map_keeps_what_was_written_to_it():
    fd = fresh(100_000)
    m = mmap.mmap(fd, 0, mmap.MAP_PRIVATE)
    m[0:2] = b"xy"
    os.pwrite(fd, b"file", 0)
    assert m[0:2] == b"xy" and os.pread(fd, 4, 0) == b"file"


@case(None)
def a_write_from_the_map_of_the_same_file():
    fd = fresh(100_000)
    m = shared(fd)
    assert os.pwrite(fd, memoryview(m)[0:5000], 50_000) == 5000
    assert m[50_000:55_000] == m[0:5000]


@case(None)
def msync_moves_the_times():
    for size in (10, 200_000):
        fd = fresh(size)
        os.utime(fd, (1, 1))
        m = shared(fd)
        m[0:1] = b"x"
        m.flush()
        os.fsync(fd)
        assert os.fstat(fd).st_mtime > 1000, size


@case(None)
def holes_read_as_zeros_and_can_be_written():
    fd = os.open("holes", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 1_000_000)
    m = shared(fd)
    assert m[500_000] == 0
    m[500_000:500_003] = b"abc"
    m.flush()
    assert os.pread(fd, 5, 499_999) == b"\0abc\0"


wrong = []
for name, wanted, body in cases:
    try:
        body()
        found = None
    except OSError as error:
        found = error.errno
    except AssertionError as error:
        found = f"an assertion {error} at line {error.__traceback__.tb_next.tb_lineno}"
    if found != wanted:
        wrong.append(f"{name}: {found}, wanted {wanted}")
print(f"{len(cases)} cases", *wrong, sep="\n")
sys.exit(1 if wrong else 0)
