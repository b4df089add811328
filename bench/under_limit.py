#!/usr/bin/env python3
"""Runs a command in a memory group of its own, and says how much memory it took, page cache included, and how long it ran.

    bench/under_limit.py --limit 6GiB --cold MODEL.gguf -- target/release/goldcrest bench MODEL.gguf -p 64 -n 32

Linux alone, with the memory controller of cgroup v1 or v2; making a group mostly needs root. The peak is the group's: every process of
the command, its page cache and the kernel's memory on its behalf. A page counts for the group that first read it, so what is in the page
cache beforehand neither counts nor is limited: name the files of the model with --cold. Exits as the command does (128 + the signal).
"""

import argparse
import contextlib
import ctypes
import errno
import json
import mmap
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time

UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
# What both versions of the controller tell, under the names that each gives it.
V1 = {"limit": "memory.limit_in_bytes", "swap": "memory.memsw.limit_in_bytes", "peak": "memory.max_usage_in_bytes",
      "events": "memory.oom_control", "rss": "total_rss", "cache": "total_cache"}
V2 = {"limit": "memory.max", "swap": "memory.swap.max", "peak": "memory.peak",
      "events": "memory.events", "rss": "anon", "cache": "file"}


def main():
    options, command = parse_options()
    exit_on_signals()
    # Opened before the run: a long measurement is not to be lost to a wrong path.
    report = open(options.report, "w", encoding="utf-8") if options.report else sys.stdout
    cold = [file for path in options.cold for file in files_of(path)]
    for file in cold:
        drop(file)
    with read_ahead(options.read_ahead, options.cold), memory_group(options.limit) as (group, names):
        found = measure(group, names, command)
    print(summary(found), file=sys.stderr)
    if options.json or options.report:
        settings = {"command": shlex.join(command), "limit_bytes": options.limit, "cold": cold, "read_ahead_kib": options.read_ahead}
        print(json.dumps(settings | found), file=report)
    sys.exit(found["exit_status"] if found["signal"] is None else 128 + signal.Signals[found["signal"]])


def exit_on_signals():
    """So that what was set is put back."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage="%(prog)s [options] -- COMMAND ARG...")
    parser.add_argument("--limit", type=size, metavar="SIZE", help="a hard limit, without swap: 6GiB, 512MiB or bytes; default: none")
    parser.add_argument("--cold", nargs="+", action="extend", default=[], metavar="FILE",
                        help="drop these files from the page cache first; a folder: every file in it")
    parser.add_argument("--read-ahead", type=int, metavar="KIB", help="read-ahead of the first FILE's disk while the command runs")
    parser.add_argument("--json", action="store_true", help="print a JSON object after the command's own output")
    parser.add_argument("--report", metavar="FILE", help="write that object to FILE instead")
    # Cut by hand: argparse would take the command's options for its own.
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, command = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1:]
    if not command:
        parser.error("a command is needed, after --")
    if options.read_ahead is not None and (options.read_ahead < 0 or not options.cold):
        parser.error("--read-ahead takes a number of KiB, and --cold FILE says for which disk")
    if not shutil.which(command[0]):
        sys.exit(f"error: {command[0]}: no such command")
    return options, command


def size(text):
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text)
    if not match or match[2].upper() not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: 6GiB, 512MiB or a number of bytes")
    return int(float(match[1]) * UNITS[match[2].upper()])


def files_of(path):
    if not os.path.isdir(path):
        return [path]
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    if not files:
        sys.exit(f"error: {path}: no files in this folder")
    return files


def drop(path):
    """Drops a file from the page cache. Pages that a process maps or that are being written stay, so the result is looked at."""
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        os.fsync(file.fileno())
        # What the disk still reads for a process that was killed cannot be dropped yet.
        for pause in (0, 0.1, 1, 5):
            time.sleep(pause)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            left = resident(file.fileno(), length) if length else 0
            if not left:
                return
    sys.exit(f"error: {path}: {left} pages stay in the page cache (mapped by a process? in memory only? another's file?)")


def resident(file, length):
    """How many pages of a file are in the page cache. Called from C, since Python's mmap tells its address only for writable maps, and
    those of files larger than the memory are refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    if address == ctypes.c_void_p(-1).value or libc.mincore(address, length, pages) != 0:
        sys.exit(f"error: cannot tell what is in the page cache: {os.strerror(ctypes.get_errno())}")
    libc.munmap(address, length)
    # Only the lowest bit of each byte is defined.
    return sum(pages.raw.count(value) for value in range(1, 256, 2))


@contextlib.contextmanager
def read_ahead(kib, files):
    """Sets the read-ahead of the disk under the first file, and puts it back."""
    if kib is None:
        yield
        return
    setting = read_ahead_setting(files[0])
    if not setting:
        sys.exit(f"error: {files[0]}: its file system has no read-ahead to set")
    before = read(setting)
    try:
        write(setting, kib)
        yield
    finally:
        write(setting, before)


def read_ahead_setting(path):
    """The file that tells the read-ahead of the disk under a file; none where there is no such disk."""
    device = os.stat(path).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    # The last one is for partitions: the queue is the whole disk's.
    folders = (f"class/bdi/{name}", f"dev/block/{name}/queue", f"dev/block/{name}/../queue")
    return next(filter(os.path.exists, (f"/sys/{folder}/read_ahead_kb" for folder in folders)), None)


@contextlib.contextmanager
def memory_group(limit):
    """A new group, whose peak starts at nothing, and the names of its files."""
    parent, names = parent_group()
    group = os.path.join(parent, f"goldcrest-bench-{os.getpid()}")
    try:
        os.mkdir(group)
    except OSError as error:
        sys.exit(f"error: cannot make the memory group {group}: {error.strerror}")
    try:
        if limit is not None:
            set_limit(group, names, limit)
        yield group, names
    finally:
        # A second Ctrl-C must not leave the group behind.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            remove(group)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def parent_group():
    """Where to make the group: in version 1 inside this process's own, so that limits set from outside still hold."""
    mounts = [line.split()[1:4] for line in read("/proc/self/mounts").splitlines()]
    for point, kind, options in mounts:
        if kind == "cgroup" and "memory" in options.split(","):
            return own_group(point, "memory"), V1
    # Version 2 gives controllers only to groups whose parent has no processes, hence mostly beside this process's own.
    for point in (point for point, kind, _ in mounts if kind == "cgroup2"):
        folder = own_group(point, "")
        while folder.startswith(point):
            if "memory" in read(os.path.join(folder, "cgroup.subtree_control")).split():
                return folder, V2
            folder = os.path.dirname(folder)
    sys.exit("error: no memory controller: neither is cgroup v1's mounted, nor does a cgroup.subtree_control of v2 name it")


def own_group(point, controller):
    """The folder of this process's group. Containers name it as seen from outside, and mount it alone."""
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and os.path.isdir(point + path):
            return (point + path).rstrip("/")
    return point


def set_limit(group, names, limit):
    path = os.path.join(group, names["limit"])
    write(path, limit)
    kept = read(path)
    # The kernel rounds down to pages, and cuts what is too large without a word.
    if not kept.isdigit() or not 0 <= limit - int(kept) < mmap.PAGESIZE:
        sys.exit(f"error: the kernel takes a limit of {limit} bytes for {kept}")
    swap = os.path.join(group, names["swap"])
    if os.path.exists(swap):
        # Version 1 limits memory and swap together, version 2 swap alone.
        write(swap, limit if names is V1 else 0)


def remove(group):
    """Ends what the command left in the group, and removes it."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return os.rmdir(group)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                sys.exit(f"error: cannot remove the memory group {group}: {error.strerror}")
        # 0 stands for a process that this one cannot see; as a number to kill it would be this process and its kin.
        for process in filter(None, map(int, read(os.path.join(group, "cgroup.procs")).split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.02)


def measure(group, names, command, timeout=None, **streams):
    """Runs a command in a group, with the standard streams given. After `timeout` seconds it is killed."""
    started = time.monotonic()
    try:
        # The child enters the group before it becomes the command, so that nothing of the command is missed.
        child = subprocess.Popen(command, preexec_fn=lambda: write(os.path.join(group, "cgroup.procs"), 0), **streams)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {command[0]} does not start in the memory group: {error}")
    if timeout is not None and not ends_within(child.pid, timeout):
        os.kill(child.pid, signal.SIGKILL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    events, stat = fields(group, names["events"]), fields(group, "memory.stat")
    return {"exit_status": child.returncode if child.returncode >= 0 else None,
            "signal": signal.Signals(-child.returncode).name if child.returncode < 0 else None,
            "oom_kills": events.get("oom_kill"),
            "seconds": seconds,
            "peak_bytes": int(read(os.path.join(group, names["peak"]))),
            # Of the largest process. Never below this program's own few MiB, since the child begins as its copy.
            "peak_rss_bytes": usage.ru_maxrss * 1024,
            "end_rss_bytes": stat.get(names["rss"]),
            "end_cache_bytes": stat.get(names["cache"]),
            "read_bytes": usage.ru_inblock * 512}


def ends_within(process, seconds):
    """Whether a process ends within some seconds. It is not waited for, so its number stays its own."""
    handle = os.pidfd_open(process)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def fields(group, name):
    return {key: int(value) for key, value in (line.split() for line in read(os.path.join(group, name)).splitlines())}


def summary(found):
    ending = f"ended by {found['signal']}; " if found["signal"] else f"exit status {found['exit_status']}; " if found["exit_status"] else ""
    if found["oom_kills"]:
        ending += f"out of memory, the kernel killed {found['oom_kills']} of the group's processes; "
    return (f"{ending}peak {found['peak_bytes'] / 2**30:.2f} GiB with page cache, rss {found['peak_rss_bytes'] / 2**30:.2f} GiB, "
            f"read {found['read_bytes'] / 1e9:.1f} GB, {found['seconds']:.1f} s")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def write(path, value):
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(str(value))
    except OSError as error:
        sys.exit(f"error: {path}: {value} is refused: {error.strerror}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}")
