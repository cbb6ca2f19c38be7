"""Attempts of two strict runs to tell each other a number while both live.

Each run listens for the other as long as it likes, then says for a while that it is there. That the
channels carry anything is held by tests/isolation/test_isolation_own_view.py.
"""

from __future__ import annotations

from attempt import Attempt, Threat, probe, sandbox_probe
from attempts_secrets import FILTER

from gate.isolation.modes import IsolationMode

OWN_PROCESSES = "each run has its own table of processes"
OWN_FILES = "each run has its own inodes (overlays)"
OWN_TERMINALS = "each run has its own instance of the terminals' file system"
# Default runs go alone, and end at once: the second strict run then starts soon after the first.
WAY = """
import fcntl, glob, random, select
SHARED = ("/etc/passwd", "/usr/bin", "/usr/bin/env", "/dev/null", "/dev/zero", os.__file__)
def beside(hear, speak):
    strict = os.environ["REPRO_GATE_MODE"] == "strict"
    heard, now = None, time.monotonic()
    end = now + random.SystemRandom().uniform(0.3, 2.5) * strict
    while time.monotonic() < end and not heard: heard = hear()
    told(heard)
    if end == now: return
    speaker = os.fork()
    if not speaker:
        kept = speak()
        time.sleep(30)
    time.sleep(2.5)
    os.kill(speaker, 9)
    os.waitpid(speaker, 0)
def family():
    "This process, those above it, and those that it started."
    parents = {}
    for path in glob.glob("/proc/[0-9]*/status"):
        try: text = pathlib.Path(path).read_text()
        except OSError: continue
        parents[int(path.split("/")[2])] = int(text.split("PPid:")[1].split()[0])
    above, at = {os.getpid()}, os.getpid()
    while at in parents and parents[at]: above.add(at := parents[at])
    return above | {pid for pid, parent in parents.items() if parent == os.getpid()}
def answering(ask):
    known, found = family(), []
    for pid in range(1, max(os.getpid(), 1000) + 2000):
        try: ask(pid)
        except PermissionError: pass
        except OSError: continue
        if pid not in known: found.append(pid)
    return found
"""


def _beside(name: str, tries: str, stopped_by: str, script: str) -> Attempt:
    return Attempt(
        name=name,
        threat=Threat.RUNS,
        tries=tries,
        stopped_by=stopped_by,
        script=WAY + script,
        tells=1,
    )


BESIDE: tuple[Attempt, ...] = (
    _beside(
        "beside-by-number",
        "looks for processes of the other run by number (`kill(0)`, `getsid`, `sched_getaffinity`)",
        OWN_PROCESSES,
        """
asks = (lambda pid: os.kill(pid, 0), os.getsid, os.sched_getaffinity)
beside(lambda: [pid for ask in asks for pid in answering(ask)], lambda: None)
""",
    ),
    _beside(
        "beside-lock-rows",
        "reads the rows of `/proc/locks`, which show the other run's locks",
        OWN_PROCESSES,
        """
def speak():
    held = open(tempfile.gettempdir() + "/held", "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    # one of the open file description, which belongs to no process
    fcntl.fcntl(held, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
    return held
beside(lambda: pathlib.Path("/proc/locks").read_text().splitlines(), speak)
""",
    ),
    _beside(
        "beside-locks",
        "locks files that both can read (`flock`), and checks whether the other run has",
        OWN_FILES,
        """
def locked(path):
    held.append(os.open(path, os.O_RDONLY))
    try: fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: return True
    return False
def take(): return [path for path in SHARED if locked(path)]
def hear():
    found = take()
    while held: os.close(held.pop())
    return found
held = []
beside(hear, take)
""",
    ),
    _beside(
        "beside-priorities",
        "sets a nice value, and asks for that of every process (`getpriority`)",
        OWN_PROCESSES,
        """
def nice(pid):
    if libc.getpriority(0, pid) != 13: raise ProcessLookupError
beside(lambda: answering(nice), lambda: libc.setpriority(0, 0, 13))
""",
    ),
    _beside(
        "beside-terminals",
        "opens pseudo terminals, and looks for those of the other run",
        OWN_TERMINALS,
        """
beside(lambda: sorted({*os.listdir("/dev/pts")} - {"ptmx"}),
    lambda: [os.openpty() for _ in range(5)])
""",
    ),
    _beside(
        "beside-watches",
        "watches files that both can read (inotify, dnotify), and opens them",
        OWN_FILES,
        """
def hear():
    seen = []
    signal.signal(signal.SIGIO, lambda *_: seen.append("dnotify"))
    folder = os.open("/usr/bin", os.O_RDONLY)
    libc.fcntl(folder, 0x402, 0x80000001)
    watch = libc.inotify_init1(0o4000)
    for path in SHARED: libc.inotify_add_watch(watch, path.encode(), 0x20)
    select.select([watch], [], [], 0.2)
    try: return seen or len(os.read(watch, 65536))
    except BlockingIOError: return seen
    finally: (os.close(watch), os.close(folder))
def speak():
    while True:
        for path in SHARED: os.close(os.open(path, os.O_RDONLY))
        time.sleep(0.01)
beside(hear, speak)
""",
    ),
    probe(
        "beside-counters",
        Threat.RUNS,
        "reads the machine's locks, how many terminals, open files, inodes and background "
        "operations it has, and what its file systems have written",
        "these files of `/proc` and `/sys` are empty in a run's view",
        """
names = ("kernel/pty/nr", "fs/file-nr", "fs/inode-nr", "fs/inode-state", "fs/dentry-state",
    "fs/aio-nr")
paths = [pathlib.Path("/proc/locks"), *(pathlib.Path("/proc/sys", name) for name in names)]
systems = [pathlib.Path("/sys/fs", name) for name in ("btrfs", "ext4", "f2fs", "xfs")]
paths += [path for one in (pathlib.Path("/proc/fs"), *systems) for path in one.glob("**/*")]
def content(path):
    try: return path.read_bytes().strip(b"\\0 \\n")
    except OSError: return b""
told([path.name for path in paths if content(path)])
""",
        control=True,
    ),
    sandbox_probe(
        "counts-by-question",
        Threat.RUNS,
        "asks for what the kernel counts machine-wide: operations in the background (`io_setup`), "
        "events (`perf_event_open`), cookies of sockets (`SO_COOKIE`), and processes, by a "
        "descriptor of one (`pidfd_open`, `clone`, `clone3`, `SO_PEERPIDFD`, `SO_PASSPIDFD`, "
        "`open_by_handle_at`, `/proc/*/fd`)",
        FILTER,
        """
import errno, glob
context, event = ctypes.create_string_buffer(8), bytearray(128)
struct.pack_into("IIQ", event, 0, 1, 128, 0)
struct.pack_into("Q", event, 40, 0x60)
fresh, left, right = ctypes.c_int(-1), *socket.socketpair()
def number_of(descriptor): return os.fstat(descriptor).st_ino
def forked(*words):
    child = call(*words)
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
    return number_of(fresh.value)
def by_clone():
    flags = 0x1000 | signal.SIGCHLD
    return forked(by_machine(56, 220), flags, 0, ctypes.byref(fresh), 0, 0)
def by_clone3():
    words = struct.pack("8Q", 0x1000, ctypes.addressof(fresh), 0, 0, signal.SIGCHLD, 0, 0, 0)
    return forked(435, words, 64)
def by_peer(): return number_of(struct.unpack("i", left.getsockopt(1, 77, 4))[0])
def by_message():
    left.setsockopt(1, 76, 1)
    right.send(b".")
    (_, _, data), = left.recvmsg(1, 64)[1]
    return number_of(struct.unpack("i", data)[0])
def by_handle():
    # of the number 1: that there is no such process is an answer too
    handle = struct.pack("IiQ", 8, 0xFE, 1)
    try: return call(by_machine(304, 265), -10002, handle, 0)
    except OSError as fault:
        if fault.errno == errno.ESTALE: return "no such process"
        raise
def by_link():
    links = glob.glob("/proc/[0-9]*/fd/*")
    found = [path for path in links if os.path.islink(path) and "pidfd" in os.readlink(path)]
    if not found: raise OSError
    return number_of(os.open(found[0], os.O_RDONLY))
any_of(lambda ask: ask(), (
    lambda: call(by_machine(206, 0), 1, context, 0, 0),
    lambda: call(by_machine(298, 241), bytes(event), 0, -1, -1, 0),
    lambda: call(434, os.getpid(), 0, 0, 0),
    lambda: struct.unpack("Q", left.getsockopt(1, 57, 8))[0],
    by_clone, by_clone3, by_peer, by_message, by_handle, by_link))
""",
        control=True,
    ),
    sandbox_probe(
        "page-cache-by-question",
        Threat.RUNS,
        "asks what is in the page cache (`preadv2` that does not wait, `cachestat`)",
        FILTER,
        """
file = os.open("/usr/bin/env", os.O_RDONLY)
data = ctypes.create_string_buffer(64)
def look(number, *words):
    try: return call(number, file, *words)
    except BlockingIOError: return "not in it"
vector = struct.pack("@PQ", ctypes.addressof(data), 1)
any_of(lambda one: look(*one), (
    (by_machine(327, 286), vector, 1, 0, 0, 8),
    (451, struct.pack("QQ", 0, 4096), data, 0)))
""",
        control=True,
    ),
    Attempt(
        name="page-cache-by-waiting",
        threat=Threat.RUNS,
        tries="reads files that every run can read, and checks which were in memory (page faults)",
        stopped_by="what a run has read leaves memory with its control group",
        # by what is still in memory while both live runs beside each other can tell
        settings="runs: {parallel: never}\n",
        modes=(IsolationMode.UID,),
        tells=1,
        cold=True,
        script="""
import mmap, resource
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
def waited(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as seen:
        before = faults()
        seen[0]
        return faults() > before
cold = pathlib.Path((root / "open" / "elsewhere").read_text(), "cold")
told([path.name for path in sorted(cold.iterdir()) if not waited(path)])
""",
    ),
    sandbox_probe(
        "page-cache-emptied",
        Threat.RUNS,
        "evicts a file that every run can read from the page cache (`posix_fadvise`)",
        FILTER,
        """
import mmap, resource
file = os.open(os.__file__, os.O_RDONLY)
while os.read(file, 65536): pass
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
seen = mmap.mmap(file, 0, prot=mmap.PROT_READ)
before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
seen[0]
told(resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before)
""",
        control=True,
    ),
    sandbox_probe(
        "kernel-log",
        Threat.RUNS,
        "reads the kernel's log, where a program that crashes leaves its name",
        FILTER,
        """
data = ctypes.create_string_buffer(4096)
def device():
    text = os.read(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK), 4096)
    if not text: raise OSError("empty")
    return text[:20]
any_of(lambda ask: ask(), (lambda: call(by_machine(103, 116), 3, data, 4096), device))
""",
        control=True,
    ),
)
