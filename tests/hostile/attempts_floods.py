"""Bombs and floods."""

from __future__ import annotations

from attempt import EVERYWHERE, Attempt, Threat
from attempts_evidence import STRICT, TWIN

from gate.isolation.modes import IsolationMode
from gate.verdict.verdict import Outcome

METRICS = ", metrics: {file: m.jsonl}"
REGULAR = "only regular files are read"


def metrics_attempt(name: str, threat: Threat, tries: str, cause: str, script: str) -> Attempt:
    """One whose script leaves something in the place of the metrics file."""
    return Attempt(
        name=name,
        threat=threat,
        tries=tries,
        stopped_by=REGULAR if threat is Threat.LINKS else STRICT,
        script='metrics = here / "m.jsonl"\n' + script,
        modes=EVERYWHERE,
        train=METRICS,
        outcome=Outcome.ERROR,
        cause=cause,
    )


BOMBS: tuple[Attempt, ...] = (
    Attempt(
        name="gigabyte-of-output",
        threat=Threat.BOMBS,
        tries="prints 1 GB",
        stopped_by="the head and the tail are kept, the rest is counted",
        script='block = b"x" * 999 + b"\\n"\n'
        "for _ in range(1024): sys.stdout.buffer.write(block * 1024)\nsys.stdout.flush()",
        modes=EVERYWHERE,
    ),
    Attempt(
        name="output-without-a-line-end",
        threat=Threat.BOMBS,
        tries="prints one line of 64 MB",
        stopped_by="a line is cut at 4096 bytes",
        script='sys.stdout.write("y" * 2**26); sys.stdout.flush()',
        modes=EVERYWHERE,
    ),
    metrics_attempt(
        "deep-json",
        Threat.BOMBS,
        "nests a line of metrics 20,000 deep",
        "line 1",
        'metrics.write_text("[" * 20_000 + "]" * 20_000)',
    ),
    metrics_attempt(
        "number-of-a-million-digits",
        Threat.BOMBS,
        "writes a number whose digits take minutes to read",
        "line 1",
        'metrics.write_text(\'{"step": 1, "loss": \' + "9" * 60_000 + "}")',
    ),
    metrics_attempt(
        "metrics-of-a-terabyte",
        Threat.BOMBS,
        "leaves a sparse metrics file of 60 GB",
        "larger than|longer than",
        'with open(metrics, "wb") as file: file.truncate(60 * 2**30)',
    ),
    Attempt(
        name="very-deep-json",
        threat=Threat.BOMBS,
        tries="nests a document of the harness's 100,000 deep",
        stopped_by=STRICT,
        script="",
        after=TWIN + 'mine("summary", "json").write_text("[" * 100_000 + "]" * 100_000)',
        modes=EVERYWHERE,
        outcome=Outcome.ERROR,
        cause="deep|nest",
        fast=True,
    ),
    Attempt(
        name="hundred-thousand-files",
        threat=Threat.BOMBS,
        tries="leaves 100,000 files where the evidence is",
        stopped_by="names are counted before they are kept",
        script='for number in range(100_000): (out / f"f{number}").touch()',
        modes=EVERYWHERE,
        outcome=Outcome.ERROR,
        cause="has more than 20,000 entries",
    ),
    Attempt(
        name="million-lines",
        threat=Threat.BOMBS,
        tries="leaves a million lines and more in the steps",
        stopped_by="lines are counted while they are read",
        script="",
        after=TWIN + 'mine("steps", "jsonl").write_bytes(b"\\n" * 1_100_000)',
        modes=EVERYWHERE,
        outcome=Outcome.ERROR,
        cause="more than 1,000,000 lines",
    ),
    Attempt(
        name="deep-folders",
        threat=Threat.BOMBS,
        tries="leaves folders 2,000 deep, closed to everybody",
        stopped_by="trees are removed without recursion",
        script="""
os.chdir(out)
for _ in range(2000):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
os.chmod(".", 0)
os.chdir(here)
(out / ("d" * 100)).chmod(0)
""",
        modes=EVERYWHERE,
    ),
    Attempt(
        name="file-of-a-terabyte",
        threat=Threat.BOMBS,
        tries="makes a file of 1 TB",
        stopped_by="a limit of 64 GiB per file",
        script='with open(home / "big", "wb") as file: trying(file.truncate, 2**40)',
        modes=(IsolationMode.UID,),
        tells=1,
    ),
    Attempt(
        name="large-file",
        threat=Threat.BOMBS,
        tries="writes a file endlessly",
        stopped_by="a limit per file (here 8 MiB)",
        script="""
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def write():
    with open(home / "big", "wb", 0) as file:
        for _ in range(64): assert file.write(bytes(2**20)) == 2**20
try: write()
except (OSError, AssertionError): told(None)
""",
        modes=(IsolationMode.UID,),
        tells=1,
        limits={"RLIMIT_FSIZE": 8 * 2**20},
    ),
    Attempt(
        name="full-disk",
        threat=Threat.BOMBS,
        tries="fills the disk that the gate works on",
        stopped_by="not prevented: an error that says so, and frees the disk",
        script="""
def fill():
    with open(home / "all", "wb", 0) as file:
        while True:
            if not file.write(bytes(2**16)): break
try: fill()
except OSError: pass
""",
        modes=(IsolationMode.NONE, IsolationMode.UID),
        outcome=Outcome.ERROR,
        # whose write comes first is chance: the training's, or the gate's for the next run
        cause="disk full while writing|No space left on device",
        disk_bytes=64 * 2**20,
    ),
)
