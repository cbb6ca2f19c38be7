"""Attempts to live on, to hurt the gate's own processes, and to reach the network."""

from __future__ import annotations

from attempt import EVERYWHERE, Attempt, Threat, probe, sandbox_probe
from attempts_secrets import ACCOUNT, FILTER

from gate.verdict.verdict import Outcome

ENDED = "all that it started is ended"
SMALL_BOMB = {"RLIMIT_NPROC": 200}

PROCESSES: tuple[Attempt, ...] = (
    Attempt(
        name="daemon",
        threat=Threat.PROCESSES,
        tries="leaves a daemon: two forks, a session of its own, signals ignored",
        stopped_by=ENDED,
        script="daemon(stay)",
        modes=EVERYWHERE,
    ),
    Attempt(
        name="nohup-and-setsid",
        threat=Threat.PROCESSES,
        tries="leaves shells behind nohup and setsid",
        stopped_by=ENDED,
        script="""
waits = f"sleep 300; : {root}"
for words in (["nohup", "sh", "-c", waits], ["setsid", "-f", "sh", "-c", waits]):
    subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
time.sleep(0.2)
""",
        modes=EVERYWHERE,
    ),
    Attempt(
        name="process-that-moves",
        threat=Threat.PROCESSES,
        tries="leaves a process that forks and dies in an endless loop, so that no reading of "
        "the process table finds it",
        stopped_by="one kill of the whole account, before any look at the table",
        script="""
def move():
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if os.fork(): os._exit(0)
        os.setsid()
daemon(move)
""",
    ),
    Attempt(
        name="fork-bomb",
        threat=Threat.PROCESSES,
        tries="forks in every process, endlessly",
        stopped_by="a limit of processes (here 200), then one kill of the whole account",
        script="""
if os.fork() == 0:
    while True:
        try: os.fork()
        except OSError: time.sleep(0.05)
time.sleep(0.5)
""",
        limits=SMALL_BOMB,
    ),
    Attempt(
        name="thread-bomb",
        threat=Threat.PROCESSES,
        tries="starts threads endlessly",
        stopped_by="a limit of processes (here 200), which counts threads",
        script="""
import threading
held = threading.Event()
def start():
    for _ in range(1000): threading.Thread(target=held.wait, daemon=True).start()
try: start()
except RuntimeError: told(None)
held.set()
""",
        tells=1,
        limits=SMALL_BOMB,
    ),
    Attempt(
        name="time-bomb",
        threat=Threat.PROCESSES,
        tries="ignores SIGTERM and never ends",
        stopped_by="train.timeout_seconds, then SIGKILL",
        script="""
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP): signal.signal(number, signal.SIG_IGN)
while True: time.sleep(60)
""",
        modes=EVERYWHERE,
        train=", timeout_seconds: 2",
        outcome=Outcome.ERROR,
        cause=r"timed out after 2 s \(train\.timeout_seconds\)",
    ),
    Attempt(
        name="output-held-open",
        threat=Threat.PROCESSES,
        tries="ends while a child of its own holds the output open",
        stopped_by="the gate waits for the process, not for the end of its output",
        script="""
if os.fork() == 0:
    os.setsid()
    stay()
""",
        modes=EVERYWHERE,
    ),
    Attempt(
        name="output-closed",
        threat=Threat.PROCESSES,
        tries="closes its output, so that nobody sees it work",
        stopped_by="the gate waits for the process",
        script="os.close(1); os.close(2); os.open(os.devnull, 1); os.open(os.devnull, 1)",
        modes=EVERYWHERE,
    ),
    probe(
        "signals-to-the-gate",
        Threat.PROCESSES,
        "stops, ends and kills the gate, its group and its session",
        ACCOUNT,
        """
numbers = (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGCHLD)
any_of(lambda number: (os.kill(gate, number), os.killpg(os.getpgid(gate), number)), numbers)
""",
    ),
    probe(
        "limits-of-the-gate",
        Threat.PROCESSES,
        "lowers the gate's limits and its priority, and makes it the first victim when memory "
        "runs out",
        ACCOUNT,
        """
import resource
def score(): open(f"/proc/{gate}/oom_score_adj", "w").write("1000")
any_of(lambda ask: ask(), (score, lambda: os.setpriority(os.PRIO_PROCESS, gate, 19),
    lambda: resource.prlimit(gate, resource.RLIMIT_NOFILE, (0, 0)),
    lambda: os.sched_setaffinity(gate, {0})))
""",
    ),
    probe(
        "limits-of-its-own",
        Threat.PROCESSES,
        "raises its own limits again",
        "hard limits, which only root may raise",
        """
import resource
def higher(name):
    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (hard, hard + 1))
any_of(higher, ("RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CORE"))
""",
    ),
)
NETWORK: tuple[Attempt, ...] = (
    probe(
        "connect-ipv4",
        Threat.NETWORK,
        "connects over IPv4, to this machine and away",
        FILTER,
        "any_of(lambda place: socket.create_connection(place, 2),"
        ' (("127.0.0.1", 9), ("192.0.2.1", 80)))',
    ),
    probe(
        "connect-ipv6",
        Threat.NETWORK,
        "connects over IPv6",
        FILTER,
        'any_of(lambda place: socket.create_connection((place, 80), 2), ("::1", "2001:db8::1"))',
    ),
    probe(
        "send-udp",
        Threat.NETWORK,
        "sends a datagram, and asks a name server",
        FILTER,
        """
def send(place): return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"word", place)
def ask(place): return socket.getaddrinfo("secret.example.invalid", 80)
any_of(lambda one: one(("192.0.2.1", 53)), (send, ask))
""",
    ),
    sandbox_probe(
        "raw-and-packet-sockets",
        Threat.NETWORK,
        "creates raw, packet, netlink and vsock sockets",
        FILTER,
        """
kinds = ((2, 3, 1), (10, 3, 58), (17, 3, 3), (16, 3, 0), (16, 2, 15), (40, 1, 0), (31, 5, 1))
any_of(lambda kind: call(by_machine(41, 198), *kind), kinds)
""",
        control=True,
    ),
    sandbox_probe(
        "family-in-the-upper-half",
        Threat.NETWORK,
        "hides the socket family in bits that the filter might ignore",
        FILTER,
        "any_of(lambda family: call(by_machine(41, 198), family, 1, 0), (2 + 2**32, 10 + 2**40))",
    ),
    sandbox_probe(
        "x32-numbers",
        Threat.NETWORK,
        "creates a socket with x32 call numbers",
        FILTER,
        "any_of(lambda number: call(by_machine(number, -1), 2, 1, 0), (0x40000000 + 41,))",
    ),
    sandbox_probe(
        "io-uring",
        Threat.NETWORK,
        "creates an io_uring, whose sockets no filter sees",
        FILTER,
        "trying(call, 425, 1, ctypes.create_string_buffer(120))",
    ),
    sandbox_probe(
        "listen",
        Threat.NETWORK,
        "opens a port to anyone who can reach this machine",
        FILTER,
        'trying(socket.create_server, ("0.0.0.0", 0))',
        control=True,
    ),
)
