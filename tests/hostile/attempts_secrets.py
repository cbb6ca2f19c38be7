"""Attempts on secrets, on the machine, on the runner's files and on what decides."""

from __future__ import annotations

from attempt import Attempt, Threat, probe, sandbox_probe

from gate.isolation.modes import IsolationMode
from gate.verdict.verdict import Outcome

ACCOUNT = "a separate account; the gate's memory is closed"
CLOSED = "closed while a training runs"
OWNER = "the folder belongs to root"
EMPTY = "an environment built from scratch"
FILTER = "the seccomp filter"

SECRETS: tuple[Attempt, ...] = (
    probe(
        "environment-of-every-process",
        Threat.SECRETS,
        "searches the environment of every process for a secret",
        ACCOUNT,
        """
def secret(folder):
    if b"CANARY" in (folder / "environ").read_bytes(): return "a secret"
    raise ValueError
any_of(secret, pathlib.Path("/proc").glob("[0-9]*"))
""",
        control=True,
    ),
    probe(
        "command-line-of-every-process",
        Threat.SECRETS,
        "searches every command line, which every account may read, for a secret",
        "no secret is ever on a command line",
        """
def secret(folder):
    if b"CANARY" in (folder / "cmdline").read_bytes(): return "a secret"
    raise ValueError
any_of(secret, pathlib.Path("/proc").glob("[0-9]*"))
""",
    ),
    probe(
        "own-environment",
        Threat.SECRETS,
        "looks for secrets and the runner's variables in its own environment",
        EMPTY,
        'told([name for name, text in os.environ.items() if "CANARY" in text'
        ' or name.startswith(("GITHUB_", "RUNNER_", "INPUT_", "ACTIONS_"))])',
    ),
    probe(
        "memory-of-the-gate",
        Threat.SECRETS,
        "opens the memory and the map of the gate's process",
        ACCOUNT,
        'any_of(lambda name: open(f"/proc/{gate}/{name}", "rb").read(1), ("mem", "maps", "auxv"))',
        control=True,
    ),
    probe(
        "memory-by-system-call",
        Threat.SECRETS,
        "reads the gate's memory with process_vm_readv",
        FILTER,
        """
held = ctypes.create_string_buffer(16)
vector = struct.pack("PN", ctypes.addressof(held), 16)
trying(call, by_machine(310, 270), gate, vector, 1, vector, 1, 0)
""",
    ),
    probe(
        "trace-the-gate",
        Threat.SECRETS,
        "attaches to the gate with ptrace",
        FILTER,
        "trying(call, by_machine(101, 117), 16, gate, 0, 0)",
    ),
    probe(
        "descriptors-of-the-gate",
        Threat.SECRETS,
        "opens the gate's descriptors, or takes one with pidfd_getfd",
        ACCOUNT,
        """
any_of(lambda number: (call(438, call(434, gate, 0), number, 0) if number > 2 else
                       open(f"/proc/{gate}/fd/{number}", "rb").close()), range(8))
""",
        control=True,
    ),
    probe(
        "inherited-descriptors",
        Threat.SECRETS,
        "looks for descriptors that the gate left open",
        "only /dev/null and one pipe are inherited",
        """
own = (__file__, f"/proc/{os.getpid()}/fd")
def opened(number):
    found = os.readlink(f"/proc/self/fd/{number}")
    if found in own: raise ValueError
    return found
any_of(opened, range(3, 1024))
""",
    ),
    probe(
        "key-file",
        Threat.SECRETS,
        "reads the file of the signing key",
        "another account",
        'trying((root / "keys/gate.pem").read_text)',
        control=True,
    ),
    probe(
        "token-in-the-runners-folder",
        Threat.SECRETS,
        "reads the checkout's token in the runner's temporary folder",
        CLOSED,
        'trying((root / "runner_temp/token").read_text)',
        control=True,
    ),
    probe(
        "token-in-git-config",
        Threat.SECRETS,
        "reads the token that a checkout left in .git/config",
        CLOSED,
        'any_of(lambda place: (place / ".git/config").read_text(), (work, here))',
        control=True,
    ),
    probe(
        "credential-file",
        Threat.SECRETS,
        "reads a cloud credential in the workspace",
        CLOSED,
        'any_of(lambda place: (place / "gha-creds-1.json").read_text(), (work, here))',
        control=True,
    ),
    probe(
        "logins-in-the-home",
        Threat.SECRETS,
        "reads logins of indexes, registries and clouds in the step's home, and in files that its "
        "variables name",
        CLOSED,
        """
names = (".netrc", ".config/pip/pip.conf", ".docker/config.json", ".aws/credentials",
         ".vault-token", ".git-credentials")
named = [root / "logins" / name for name in ("NETRC", "PIP_CONFIG_FILE")]
any_of(lambda path: path.read_text(), [*(root / "home" / name for name in names), *named])
""",
        control=True,
    ),
    probe(
        "event-file",
        Threat.SECRETS,
        "reads the runner's event",
        CLOSED,
        'trying((root / "workflow/event.json").read_text)',
        control=True,
    ),
    probe(
        "core-dump",
        Threat.SECRETS,
        "allows core dumps again and leaves one",
        "the limit is 0, and cannot be raised",
        """
import resource
trying(resource.setrlimit, resource.RLIMIT_CORE, (2**30, 2**30))
""",
        control=True,
    ),
)
LOOKS = """
import os, pathlib
names = ("GITHUB_", "RUNNER_", "INPUT_", "ACTIONS_", "PIP_", "UV_")
got = [name for name, text in os.environ.items() if "CANARY" in text or name.startswith(names)]
pathlib.Path("data/made").mkdir(parents=True)
pathlib.Path("data/made/got.txt").write_text(repr(got) if got else "nothing")
"""
MD5 = "d41d8cd98f00b204e9800998ecf8427e"
LFS = "version https://git-lfs.github.com/spec/v1"
SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SECRETS += (
    Attempt(
        name="environment-of-preprocessing",
        threat=Threat.SECRETS,
        tries="looks for secrets and the runner's variables where the data is made",
        stopped_by=EMPTY,
        script='told(None if pathlib.Path("data/made/got.txt").read_text() == "nothing" else 1)',
        settings="preprocess: {command: python3 prepare.py, out: data/made}\n",
        files={"prepare.py": LOOKS},
        # the baseline is one without preprocessing
        outcome=Outcome.NOT_COMPARABLE,
        tells=1,
    ),
    Attempt(
        name="environment-of-a-signing-program",
        threat=Threat.SECRETS,
        tries="asks the program of `signer: exec:` for its environment",
        stopped_by="the step's inputs and other logins are left out",
        script="",
        programs=("signer",),
        modes=(IsolationMode.UID,),
    ),
    Attempt(
        name="environment-of-dvc",
        threat=Threat.SECRETS,
        tries="declares data, so that dvc starts next to every credential",
        stopped_by="the step's inputs and other logins are left out",
        script="",
        settings="data: [{dvc: data/x.bin.dvc}]\nfetch: {cache: ELSEWHERE/cache}\n",
        files={
            "data/x.bin.dvc": f"outs:\n- md5: {MD5}\n  size: 0\n  hash: md5\n  path: x.bin\n",
            ".dvc/config": "[core]\n    remote = s\n['remote \"s\"']\n    url = s3://x/y\n",
        },
        programs=("dvc",),
        modes=(IsolationMode.UID,),
        outcome=Outcome.ERROR,
        cause="dvc",
    ),
    Attempt(
        name="environment-of-git-lfs",
        threat=Threat.SECRETS,
        tries="declares data, so that git lfs starts next to every credential",
        stopped_by="the step's inputs and other logins are left out",
        script="",
        settings="data: [{lfs: 'data/*.lfs'}]\nfetch: {cache: ELSEWHERE/cache}\n",
        files={
            "data/x.lfs": f"{LFS}\noid sha256:{SHA256}\nsize 1\n",
            ".lfsconfig": "[lfs]\n    url = https://lfs.invalid/x\n",
        },
        programs=("git-lfs",),
        modes=(IsolationMode.UID,),
        outcome=Outcome.ERROR,
        cause="lfs",
    ),
)
HOST: tuple[Attempt, ...] = (
    probe(
        "engine-socket",
        Threat.HOST,
        "connects to the container engine",
        "another account without groups; no socket in a training container",
        """
def connect(path):
    with socket.socket(socket.AF_UNIX) as one: one.connect(str(path))
any_of(connect, (root / "docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock"))
""",
        control=True,
    ),
    probe(
        "become-root",
        Threat.HOST,
        "asks for root's account and root's groups",
        "root and all its capabilities are given up for good",
        "any_of(lambda ask: ask(), (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0),"
        " lambda: os.setgroups([0]), lambda: os.setgid(0)))",
    ),
    probe(
        "setuid-program",
        Threat.HOST,
        "starts a setuid program that belongs to root",
        "no_new_privs",
        """
def start(path):
    answer = subprocess.run([path, "-u"], capture_output=True, text=True).stdout.strip()
    if answer != "0": raise ValueError
    return answer
any_of(start, (root / "tools/id",))
""",
        control=True,
    ),
    probe(
        "namespaces-of-its-own",
        Threat.HOST,
        "creates a user namespace in which it is root",
        FILTER,
        """
def make(flags):
    if os.fork() == 0: os._exit(libc.unshare(flags) and 1)
    if os.wait()[1]: raise ValueError
    return flags
any_of(make, (0x10000000, 0x10020000, 0x50000000))
""",
    ),
    probe(
        "namespace-by-clone",
        Threat.HOST,
        "creates a user namespace with clone and clone3",
        FILTER,
        """
def child(number, *words):
    pid = call(number, *words)
    if pid == 0: os._exit(0)
    return os.waitpid(pid, 0)
plan = struct.pack("QQQQQQQQ", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
any_of(lambda words: child(*words), (
    (by_machine(56, 220), 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0), (435, plan, len(plan))))
""",
    ),
    probe(
        "mount-and-chroot",
        Threat.HOST,
        "mounts over the harness and changes its root",
        "no capability",
        "any_of(lambda ask: ask(), (lambda: os.chroot('/'),"
        " lambda: call(by_machine(165, 40), b'none', str(run).encode(), b'tmpfs', 0, 0)))",
    ),
    probe(
        "kernel-doors",
        Threat.HOST,
        "uses bpf, userfaultfd, open_by_handle_at and the keyrings",
        FILTER,
        """
empty = ctypes.create_string_buffer(128)
any_of(lambda words: call(*words), (
    (by_machine(321, 280), 0, empty, 128), (by_machine(323, 282), 0),
    (by_machine(304, 265), -100, empty, 0), (by_machine(250, 219), 0, -3, 1)))
""",
    ),
    sandbox_probe(
        "another-architecture",
        Threat.HOST,
        "creates a socket with 32-bit call numbers, to get past the filter",
        "the filter ends the process",
        """
import mmap
# mov eax, 359 (socket); mov ebx, 2; mov ecx, 1; xor edx, edx; int 0x80; ret
code = bytes.fromhex("b867010000bb02000000b90100000031d2cd80c3")
def jump():
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
def child(_):
    if os.uname().machine != "x86_64": raise ValueError
    if os.fork() == 0: os._exit(0 if jump() >= 0 else 1)
    status = os.wait()[1]
    if status != 0: raise ValueError
    return "a socket"
any_of(child, (1,))
""",
    ),
)
