"""Attempts to forge evidence, and malicious checkpoints."""

from __future__ import annotations

from attempt import EVERYWHERE, Attempt, Threat

from gate.isolation.modes import IsolationMode
from gate.verdict.verdict import Outcome

STRICT = "strict parsing"
NO_UNPICKLING = "a reader that runs nothing"
COPY = "the gate hashes, compares and signs its own copy"
CHECKPOINT = ", checkpoint: model.pt"
# a second process's files, made of the first one's by the words that are replaced
TWIN = """
def twin(rank, pid):
    mine = f"r0-{os.getpid()}"
    for path in list(out.iterdir()):
        text = path.read_bytes().replace(f'"pid": {os.getpid()}'.encode(), f'"pid": {pid}'.encode())
        text = text.replace(b'"rank": 0', f'"rank": {rank}'.encode())
        (out / path.name.replace(mine, f"r{rank}-{pid}")).write_bytes(text)
def mine(kind, ending): return out / f"{kind}-r0-{os.getpid()}.{ending}"
"""
ARCHIVE = """
def push(text): return b"X" + struct.pack("<I", len(text)) + text.encode()
def archive(pickle, **members):
    with zipfile.ZipFile(here / "model.pt", "w") as target:
        target.writestr("bad/data.pkl", pickle)
        target.writestr("bad/byteorder", "little")
        for name, content in members.items(): target.writestr("bad/data/" + name[1:], content)
marker = root / "runner_temp/ran"
def tensor(elements, key="0", shape=4):
    storage = b"(" + push("storage") + b"ctorch\\nFloatStorage\\n" + push(key) + push("cpu")
    storage += b"\\x8a\\x08" + struct.pack("<q", elements) + b"tQ"
    size = b"(\\x8a\\x08" + struct.pack("<q", shape) + b"t" + b"(K\\x01t"
    hooks = b"\\x89ccollections\\nOrderedDict\\n)R"
    return b"ctorch._utils\\n_rebuild_tensor_v2\\n(" + storage + b"K\\x00" + size + hooks + b"tR"
"""


def _forged(name: str, tries: str, cause: str, after: str) -> Attempt:
    return Attempt(
        name=name,
        threat=Threat.FORGERY,
        tries=tries,
        stopped_by=STRICT,
        script="",
        after=TWIN + after,
        modes=EVERYWHERE,
        outcome=Outcome.ERROR,
        cause=cause,
    )


def _answered(name: str, tries: str, stopped_by: str) -> Attempt:
    """Other numbers where an entry answers for unchanged files without a run."""
    return Attempt(
        name=name,
        threat=Threat.FORGERY,
        tries=tries,
        stopped_by=stopped_by,
        script="",
        modes=(IsolationMode.UID,),
        train=", files: [train.py, play.json]",
        settings="runs: {unaffected: answer}\n",
        play={"losses": ["9", "9", "9"]},
        outcome=Outcome.CODE_DRIFT,
    )


def _checkpoint(name: str, tries: str, cause: str, script: str, *, fast: bool = False) -> Attempt:
    return Attempt(
        name=name,
        threat=Threat.CHECKPOINT,
        tries=tries,
        stopped_by=NO_UNPICKLING,
        script=ARCHIVE + script,
        modes=EVERYWHERE,
        train=CHECKPOINT,
        outcome=Outcome.ERROR,
        cause=cause,
        fast=fast,
    )


FORGERY: tuple[Attempt, ...] = (
    _forged(
        "second-process-of-a-rank",
        "writes the files of a second process of rank 0",
        "2 processes trained without ranks",
        "twin(0, 4242)",
    ),
    _forged(
        "idle-second-rank",
        "claims a second rank that has other steps",
        "rank",
        'twin(1, 4242)\n(out / "steps-r1-4242.jsonl").write_text("")',
    ),
    _forged(
        "another-process-inside",
        "names another process inside its own file",
        "names process 1, rank 0 inside",
        'path = mine("process", "json")\n'
        'path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 1}))',
    ),
    _forged(
        "no-summary",
        "removes the marker that the process ended well",
        "is missing",
        'mine("summary", "json").unlink()',
    ),
    _forged(
        "steps-twice",
        "writes a step twice with two losses",
        "step",
        'path = mine("steps", "jsonl")\npath.write_text(path.read_text() * 2)',
    ),
    _forged(
        "loss-that-is-no-number",
        "reports NaN, which no comparison can object to",
        "a number that is not finite never passes",
        'path = mine("steps", "jsonl")\n'
        'path.write_text(path.read_text().replace((2.125).hex(), "nan"))',
    ),
    _forged(
        "unknown-keys",
        "adds keys to a document, a verdict among them",
        "verdict",
        'path = mine("summary", "json")\n'
        'path.write_text(path.read_text().replace("{", \'{"verdict": "reproduced", \', 1))',
    ),
    _forged(
        "key-given-twice",
        "gives a key twice, so that two readers take different values",
        "twice|duplicate",
        'path = mine("summary", "json")\n'
        'path.write_text(path.read_text().replace("{", \'{"steps": 9, \', 1))',
    ),
    _forged(
        "nothing-to-compare",
        "leaves a state without a tensor",
        "holds no tensor",
        'mine("state", "safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")',
    ),
    Attempt(
        name="numbers-of-the-baseline",
        threat=Threat.FORGERY,
        tries="reads the committed baseline and reports its numbers with other weights, where one "
        "run that equals it would be enough",
        stopped_by="the gate hashes every tensor itself; one run is enough only if "
        "every bit is equal",
        script="""
entry = json.loads(next(here.glob(".repro-gate/baseline/*.json")).read_text())
numbers = [point["decimal"] for point in entry["metrics"][0]["points"]]
(here / "play.json").write_text(json.dumps({"losses": numbers, "weights": "other"}))
""",
        modes=(IsolationMode.UID,),
        play={"losses": ["9", "9", "9"]},
        settings="cost: {when: nightly}\nruns: {when_reproduced: one}\n",
        outcome=Outcome.CODE_DRIFT,
    ),
    _answered(
        "entry-of-other-files",
        "changes its script where an entry answers for unchanged files",
        "the gate hashes the files of the commit itself, and trains where one differs",
    ),
    _answered(
        "entry-for-its-own-files",
        "includes a baseline entry of the old numbers with the digest of its new files",
        "only the base commit's entries answer; one that the pull request adds makes the gate "
        "train",
    ),
    Attempt(
        name="swap-between-hash-and-seal",
        threat=Threat.FORGERY,
        tries="leaves a daemon that swaps the state for a link to the key once it was hashed",
        stopped_by=f"the daemon is ended before anything is read; {COPY}",
        script="",
        after="""
state = out / f"state-r0-{os.getpid()}.safetensors"
trained = os.getpid()
def swap():
    while os.path.exists(f"/proc/{trained}"): time.sleep(0.01)
    time.sleep(5)
    state.unlink()
    state.symlink_to(root / "keys/gate.pem")
daemon(swap)
""",
        modes=EVERYWHERE,
        fast=True,
    ),
    Attempt(
        name="results-that-differ",
        threat=Threat.FORGERY,
        tries="makes the second run random",
        stopped_by="two runs are compared bit for bit",
        script="",
        play={"random": True},
        modes=EVERYWHERE,
        outcome=Outcome.NONDETERMINISTIC,
        fast=True,
    ),
)
CHECKPOINTS: tuple[Attempt, ...] = (
    _checkpoint(
        "pickle-that-runs-a-command",
        "saves a pickle that calls os.system when it is loaded",
        "posix|system",
        'archive(b"\\x80\\x02cposix\\nsystem\\n(" + push(f"touch {marker}") + b"tR.")',
        fast=True,
    ),
    _checkpoint(
        "pickle-that-builds-an-object",
        "hides the call behind getattr and a class's state",
        "builtins|getattr",
        'archive(b"\\x80\\x02cbuiltins\\ngetattr\\n(cbuiltins\\n__import__\\n("'
        ' + push("os") + b"tR" + push("system") + b"tR(" + push(f"touch {marker}") + b"tR.")',
    ),
    _checkpoint(
        "pickle-without-archive",
        "saves a bare pickle that runs a command",
        "model.pt",
        '(here / "model.pt").write_bytes(b"cposix\\nsystem\\n(S\'touch " + str(marker).encode()'
        ' + b"\'\\ntR.")',
    ),
    _checkpoint(
        "million-opcodes",
        "saves a pickle of ten million opcodes",
        "model.pt",
        'archive(b"\\x80\\x02" + b"N0" * 5_000_000 + b"N.")',
    ),
    _checkpoint(
        "nested-tuples",
        "saves a pickle that is 100,000 tuples deep",
        "model.pt",
        'archive(b"\\x80\\x02N" + b"\\x85" * 100_000 + b".")',
    ),
    _checkpoint(
        "false-storage-size",
        "claims a storage of 2^60 numbers behind 16 bytes",
        "model.pt",
        'archive(b"\\x80\\x02" + tensor(2**60, shape=2**60) + b".", _0=b"0123456789abcdef")',
    ),
    _checkpoint(
        "tensor-beyond-its-storage",
        "lets a tensor reach beyond its storage, into the reader's memory",
        "model.pt",
        'archive(b"\\x80\\x02" + tensor(4, shape=4000) + b".", _0=b"0123456789abcdef")',
    ),
    _checkpoint(
        "weights-that-load-as-others",
        "saves a parameter whose attribute replaces its weights when it is loaded",
        "attribute 'data' would change it",
        """
parameter = b"ctorch._utils\\n_rebuild_parameter_with_state\\n(" + tensor(4)
parameter += b"\\x89ccollections\\nOrderedDict\\n)R}(" + push("data") + tensor(4, "1") + b"utR"
archive(b"\\x80\\x02" + parameter + b".", _0=b"0123456789abcdef", _1=b"fedcba9876543210")
""",
    ),
    _checkpoint(
        "zip-bomb",
        "saves an archive of 2 GB of zeros in 2 MB",
        "model.pt",
        """
pickle = b"\\x80\\x02" + tensor(2**29, shape=2**29) + b"."
with zipfile.ZipFile(here / "model.pt", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
    target.writestr("bad/data.pkl", pickle, zipfile.ZIP_STORED)
    target.writestr("bad/byteorder", "little", zipfile.ZIP_STORED)
    with target.open("bad/data/0", "w", force_zip64=True) as file:
        for _ in range(2048): file.write(bytes(2**20))
""",
    ),
    _checkpoint(
        "many-members",
        "saves an archive of 100,000 members",
        "model.pt",
        """
with zipfile.ZipFile(here / "model.pt", "w") as target:
    for number in range(100_000): target.writestr(f"bad/data/{number}", b"")
""",
    ),
    _checkpoint(
        "tar-bomb",
        "saves a tar archive whose members leave its folder",
        "model.pt",
        """
import io, tarfile
with tarfile.open(here / "model.pt", "w:gz") as target:
    for name in ("../../../runner_temp/ran", "/etc/planted"):
        entry = tarfile.TarInfo(name); entry.size = 2**20
        target.addfile(entry, io.BytesIO(bytes(2**20)))
""",
    ),
    _checkpoint(
        "safetensors-header",
        "claims a header of 2^63 bytes",
        "model.pt|header",
        '(here / "model.pt").write_bytes((2**63).to_bytes(8, "little") + b"{}")',
    ),
    Attempt(
        name="state-of-a-terabyte",
        threat=Threat.CHECKPOINT,
        tries="claims a tensor of 2^50 bytes in the state that the harness captures",
        stopped_by="sizes are checked against the file first",
        script="",
        after=TWIN
        + """
entry = {"dtype": "F32", "shape": [2**48], "data_offsets": [0, 2**50]}
header = json.dumps({"model/0/weight": entry}).encode()
mine("state", "safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(32))
""",
        modes=(IsolationMode.NONE, IsolationMode.UID, IsolationMode.CONTAINER),
        outcome=Outcome.ERROR,
        cause="safetensors",
    ),
)
