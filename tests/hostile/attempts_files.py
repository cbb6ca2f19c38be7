"""Attempts on the runner's files, on what decides, and to carry word from one run to the next."""

from __future__ import annotations

import re

from attempt import EVERYWHERE, Attempt, Threat, probe, sandbox_probe
from attempts_secrets import CLOSED, FILTER, OWNER

from gate.isolation.modes import IsolationMode
from gate.verdict.verdict import Outcome

SNAPSHOT = "every run is a fresh copy of the exported commit"
WIPED = "the account's files are removed after every run"

COMMANDS: tuple[Attempt, ...] = (
    probe(
        "read-command-files",
        Threat.COMMANDS,
        "reads the runner's output, variables and state of other steps",
        CLOSED,
        'any_of(lambda name: (root / "file_commands" / name).read_text(),'
        ' ("output", "env", "path", "state", "summary"))',
        control=True,
    ),
    probe(
        "write-command-files",
        Threat.COMMANDS,
        "writes the verdict into the step's output, and a variable for later steps",
        "the runner's account owns them",
        """
def write(name):
    with open(root / "file_commands" / name, "a") as file: return file.write("verdict=x\\n")
any_of(write, ("output", "env", "path", "state", "summary"))
""",
    ),
    probe(
        "replace-the-runners-folders",
        Threat.COMMANDS,
        "renames the runner's folders and puts its own in their place",
        OWNER,
        'any_of(lambda name: os.rename(root / name, root / (name + "2")),'
        ' ("runner_temp", "file_commands", "workflow", "work"))',
    ),
)
DECIDERS: tuple[Attempt, ...] = (
    probe(
        "write-the-baseline",
        Threat.DECIDERS,
        "writes the workspace's baseline, settings and workflow",
        "the runner's account owns them, and the base commit decides",
        'any_of(lambda name: (work / name).write_text("forged"), (".repro-gate/baseline/a.json",'
        ' "repro-gate.yml", "train.py", ".github/workflows/gate.yml"))',
        control=True,
    ),
    probe(
        "write-git",
        Threat.DECIDERS,
        "plants a hook and an object in the clone",
        CLOSED,
        'any_of(lambda name: (work / ".git" / name).write_text("#!/bin/sh"),'
        ' ("hooks/post-checkout", "config", "HEAD", "objects/planted"))',
    ),
    probe(
        "snapshot-of-the-code",
        Threat.DECIDERS,
        "changes the exported code that the next run is copied from",
        "root's folder, closed; its digest is checked at the end",
        'any_of(lambda name: (run.parent / "head-snapshot" / name).write_text("forged"),'
        ' ("train.py", "play.json", "planted.py"))',
    ),
    probe(
        "read-the-snapshots",
        Threat.DECIDERS,
        "lists the exported code of the commits",
        CLOSED,
        'any_of(lambda name: os.listdir(run.parent / name), ("head-snapshot", "base-snapshot"))',
        control=True,
    ),
    probe(
        "evidence-of-the-run-before",
        Threat.DECIDERS,
        "lists or adds to the evidence that the gate keeps",
        CLOSED,
        'any_of(lambda path: (list(os.scandir(path)), (path / "strict-1").mkdir()),'
        ' (work / "out", work / "out/evidence", work / "out/evidence/strict-1"))',
    ),
    probe(
        "copies-that-are-signed",
        Threat.DECIDERS,
        "writes into the folder of copies that are hashed and signed",
        OWNER,
        'any_of(lambda name: (run / "taken" / name).write_text("forged"),'
        ' ("request.json", "output.txt", f"state-r0-{os.getpid()}.safetensors"))',
    ),
    probe(
        "the-harness-itself",
        Threat.DECIDERS,
        "rewrites the harness that the next process starts with",
        OWNER,
        'any_of(lambda name: (run / "harness" / name).write_text("forged"),'
        ' ("sitecustomize.py", "repro_gate_harness/modules.bundle", "torch.py"))',
    ),
    probe(
        "folders-of-the-run",
        Threat.DECIDERS,
        "puts links in the place of its own folders",
        OWNER,
        """
def swap(name):
    os.rename(run / name, run / (name + "-2"))
    os.symlink("/etc", run / name)
any_of(swap, ("out", "tree", "tmp", "home", "taken", "harness"))
""",
    ),
    Attempt(
        name="weaker-rules-in-the-commit",
        threat=Threat.DECIDERS,
        tries="includes a baseline of its own numbers and settings that allow everything",
        stopped_by="the base commit decides; what changes is shown",
        script="",
        play={"losses": ["2.5", "2.25", "1.0"], "weights": "other"},
        outcome=Outcome.CODE_DRIFT,
        fast=True,
    ),
)
APPROVED_BY_NOBODY = "without base settings, no setting reaches outside the checkout"
NO_DATA = "a file that is closed to trainings is not accepted as data"


def _brought(name: str, tries: str, key: str, *, train: str = "", settings: str = "") -> Attempt:
    return Attempt(
        name=f"brought-{name}",
        threat=Threat.WISHES,
        tries=tries,
        stopped_by=APPROVED_BY_NOBODY,
        # should it be trained all the same, it says what it got
        script="told([name for name, text in os.environ.items() if 'CANARY' in text] or 'a run')",
        modes=(IsolationMode.UID,),
        train=train,
        settings=settings,
        brought=True,
        cause=f"{re.escape(key)}: ",
    )


def _closed_data(name: str, tries: str, path: str) -> Attempt:
    return Attempt(
        name=f"declared-{name}",
        threat=Threat.WISHES,
        tries=tries,
        stopped_by=NO_DATA,
        script="told('a run')",
        settings=f"data: [{{path: '{{root}}/{path}', as: mini}}]\n",
        outcome=Outcome.ERROR,
        cause="which is closed to the training",
    )


WISHES: tuple[Attempt, ...] = (
    _brought(
        "pass-env",
        "asks for variables of the gate by name",
        "train.pass_env",
        train=", pass_env: [DEPLOY_KEY]",
    ),
    _brought(
        "closed-files",
        "declares the event, the clone's configuration and the runner's token as data",
        "data.path",
        settings="data: [{path: '{root}/workflow/event.json'}, {path: '{root}/work/.git/config'},"
        " {path: '{root}/runner_temp/token'}]\n",
    ),
    _brought(
        "address",
        "has the gate query a service on the loopback interface",
        "data.url",
        settings=f"data: [{{url: 'http://127.0.0.1:9/x', sha256: '{'0' * 64}'}}]\n",
    ),
    _brought(
        "pointer",
        "has the gate fetch data of the project with the gate's logins",
        "data.dvc",
        settings="data: [{dvc: private.dvc}]\n",
    ),
    _brought(
        "network", "opens the network", "isolation.network", settings="isolation: {network: true}\n"
    ),
    _brought(
        "weaker-isolation",
        "asks to be trained under the gate's own account",
        "isolation.mode",
        settings="isolation: {mode: none}\n",
    ),
    _brought(
        "image",
        "asks for an image and all GPUs",
        "isolation.image",
        settings=f"isolation: {{image: 'x/y@sha256:{'0' * 64}', gpus: [all]}}\n",
    ),
    _brought(
        "cache-folders",
        "has root create folders in /etc",
        "fetch.cache",
        settings="fetch: {cache: /etc/repro-gate-planted}\n",
    ),
    _brought(
        "services",
        "names who certifies, where packages go, and a branch to write",
        "signing.fulcio_url",
        settings="signing: {fulcio_url: 'http://127.0.0.1:9'}\n"
        "publish: {oci: 'localhost:9/x'}\nreport: {history: true}\n",
    ),
    _closed_data(
        "event",
        "reads the event through a base commit that declares it as data",
        "workflow/event.json",
    ),
    _closed_data("clone", "reads the clone's configuration in the same way", "work/.git"),
    _closed_data("token", "reads the runner's token in the same way", "runner_temp/token"),
    _closed_data("folder-around-them", "declares a folder that holds all of these", ""),
    Attempt(
        name="cache-among-the-systems-files",
        threat=Threat.WISHES,
        tries="has root create a cache in /etc through the base commit's settings",
        stopped_by="no cache among the system's files",
        script="told('a run')",
        settings="fetch: {cache: /etc/repro-gate-planted}\n"
        f"data: [{{url: 'http://127.0.0.1:9/x', sha256: '{'0' * 64}'}}]\n",
        outcome=Outcome.ERROR,
        cause="which belongs to the system",
    ),
    Attempt(
        name="two-branches-one-head",
        threat=Threat.WISHES,
        tries="passes on a branch with loose rules, so that its status counts for main too",
        stopped_by="the status names the branch",
        script="",
        play={"losses": ["2.5", "2.25", "9.0"]},
        outcome=Outcome.CODE_DRIFT,
        two_bases=True,
    ),
)
RUNS: tuple[Attempt, ...] = (
    Attempt(
        name="own-source",
        threat=Threat.RUNS,
        tries="edits its own source to help the second run",
        stopped_by=SNAPSHOT,
        script="""
text = pathlib.Path(__file__).read_text()
told("edited" if text.endswith("# edited") else None)
pathlib.Path(__file__).write_text(text + "# edited")
""",
        modes=EVERYWHERE,
        tells=1,
    ),
    Attempt(
        name="cache-in-home",
        threat=Threat.RUNS,
        tries="leaves numbers in its home and its own packages there",
        stopped_by="a new home for every run",
        script='left_before(home / ".cache/numbers")\n'
        'left_before(home / ".local/lib/python3/site-packages/usercustomize.py")',
        modes=EVERYWHERE,
        tells=2,
    ),
    Attempt(
        name="cache-in-tmpdir",
        threat=Threat.RUNS,
        tries="leaves numbers in its folder for temporary files",
        stopped_by="a new folder for every run",
        script='left_before(pathlib.Path(tempfile.gettempdir()) / "numbers")',
        modes=EVERYWHERE,
        tells=1,
    ),
    Attempt(
        name="shared-folders",
        threat=Threat.RUNS,
        tries="leaves numbers in /tmp, /var/tmp and /dev/shm",
        stopped_by=WIPED,
        script="""
for folder in ("/tmp", "/var/tmp", "/dev/shm"):
    try: left_before(pathlib.Path(folder) / f"hostile-{os.getuid()}" / "numbers")
    except OSError: pass
""",
        tells=3,
    ),
    Attempt(
        name="system-v-objects",
        threat=Threat.RUNS,
        tries="leaves shared memory, semaphores and a message queue of System V",
        stopped_by="the account's objects are removed after every run",
        script="""
IPC_CREAT, key = 0o1000, 0x6a7e0000 + os.getuid()
found = [libc.shmget(key, 64, 0o600), libc.semget(key, 1, 0o600), libc.msgget(key, 0o600)]
told([number for number in found if number >= 0])
made = libc.shmget(key, 64, IPC_CREAT | 0o600), libc.semget(key, 1, IPC_CREAT | 0o600)
assert min(*made, libc.msgget(key, IPC_CREAT | 0o600)) >= 0
""",
        tells=1,
    ),
    Attempt(
        name="sampling-intervals",
        threat=Threat.RUNS,
        tries="draws a number and passes it on in the sampling intervals that it reports",
        stopped_by="a run receives nothing that another run reported",
        script="""
import re, secrets
exponents = [secrets.randbelow(20) for _ in range(3)]
intervals = {name: 2**n for name, n in zip(("random", "batch", "tensors"), exponents)}
groups = re.compile(r"(random|batch|tensors)=([0-9]+)")
handed = [text for text in os.environ.values() if groups.search(text)]
told(handed)
if handed: intervals = {name: int(n) for name, n in groups.findall(handed[0])}
play = json.loads((here / "play.json").read_text())
play["losses"][-1] = str(sum(intervals.values()))
(here / "play.json").write_text(json.dumps(play))
""",
        after="""
path = out / f"summary-r0-{os.getpid()}.json"
path.write_text(json.dumps({**json.loads(path.read_text()), "sampling_intervals": intervals}))
""",
        modes=EVERYWHERE,
        outcome=Outcome.NONDETERMINISTIC,
        tells=1,
    ),
    Attempt(
        name="agreement-with-the-run-beside",
        threat=Threat.RUNS,
        tries="draws a number, passes it by socket, process name and file to the other run, and "
        "takes "
        "the smaller one",
        stopped_by="each has its own account, list of processes, network and temporary folders",
        script="""
import re, secrets
# nine digits: the name of a process has fifteen characters
number = secrets.randbelow(2**29)
name = f"agreed{number}"
told_by = socket.socket(socket.AF_UNIX)
told_by.bind("\\0" + name)
pathlib.Path("/proc/self/comm").write_text(name)
places = [pathlib.Path(place) for place in ("/tmp", "/dev/shm", "/var/tmp")]
for place in places:
    try: (place / name).touch()
    except OSError: pass
def heard():
    yield pathlib.Path("/proc/net/unix").read_text()
    names = [path for place in places for path in place.glob("*")]
    for path in (*pathlib.Path("/proc").glob("[0-9]*/comm"), *names):
        try: yield path.read_text() if path.name == "comm" else path.name
        except OSError: pass
others = set()
end = time.monotonic() + (4 if os.environ["REPRO_GATE_MODE"] == "strict" else 0)
while time.monotonic() < end and not others:
    others = {int(n) for text in heard() for n in re.findall("agreed([0-9]+)", text)} - {number}
    time.sleep(0.2)
told(others)
play = json.loads((here / "play.json").read_text())
play["losses"][-1] = str(min({number, *others}))
(here / "play.json").write_text(json.dumps(play))
""",
        outcome=Outcome.NONDETERMINISTIC,
        tells=1,
    ),
    sandbox_probe(
        "queues-and-keys",
        Threat.RUNS,
        "leaves a POSIX message queue, and a key in a keyring",
        FILTER,
        """
any_of(lambda words: call(*words), (
    (by_machine(240, 180), b"hostile", 0o102, 0o600, 0),
    (by_machine(248, 217), b"user", b"hostile", b"word", 4, -4)))
""",
    ),
    probe(
        "site-packages",
        Threat.RUNS,
        "plants a module where every Python of the machine imports from",
        OWNER,
        """
import sysconfig
folders = {*sysconfig.get_paths().values(), *filter(os.path.isdir, sys.path)} - {str(here)}
any_of(lambda folder: (pathlib.Path(folder) / "planted.pth").write_text("import os"), folders)
""",
    ),
    probe(
        "scheduled-work",
        Threat.RUNS,
        "leaves work for cron and at",
        OWNER,
        'any_of(lambda name: (pathlib.Path(name) / "hostile").write_text("* * * * * id"),'
        ' ("/etc/cron.d", "/var/spool/cron", "/var/spool/cron/crontabs", "/etc/init.d"))',
    ),
)
