"""A training without torch that writes what a harness would: real processes, a tenth of a second.

`play.json` beside it says what to play, for each mode where that matters. `needs` names a knob
without which the result is random, `knob_seconds` what each knob adds to a step. `trace` are the
lines of an operator trace, `traced` what is other in a traced run. What is random is not where
one of the variables `steady` has the value given; then a fill of memory shows in the result. The
real harness has its own tests; these are about everything behind it.
"""

from __future__ import annotations

import json
from pathlib import Path

from git_workshop import Repository

SCRIPT = """
import hashlib, json, os, pathlib, struct, sys, time
here = pathlib.Path(__file__).parent
play = json.loads((here / "play.json").read_text())
play.update(play.get(os.environ["REPRO_GATE_MODE"], {}))
traced = "REPRO_GATE_TRACE_FROM" in os.environ
play.update(play.get("traced", {}) if traced else {})
out = pathlib.Path(os.environ["REPRO_GATE_OUT"])
print(play.get("says", "training"))
if os.environ.get("REPRO_GATE_TRIAL", "-").startswith(play.get("fails", "never")):
    sys.exit(1)
if "exit" in play and "counted" not in play:
    sys.exit(play["exit"])
time.sleep(play.get("sleep", 0))
losses = [float(text) for text in play["losses"]]
words = dict(pair.split("=") for pair in os.environ["REPRO_GATE_KNOBS"].split(";"))
knobs = [name for name, word in words.items() if word not in ("keep", "off")]
knobs += ["cudnn_benchmark_off"] if words["cudnn_benchmark"] == "off" else []
knobs += ["fill_uninitialized_memory"] if words["memory_fill"] == "on" else []
paid = play.get("knob_seconds", {})
seconds = play.get("seconds", 0.1) + sum(paid[knob] for knob in knobs if knob in paid)
steady = any(os.environ.get(name) == text for name, text in play.get("steady", ()))
if play.get("random") and steady:
    losses[-1] += len(os.environ.get("REPRO_GATE_TRIAL", "").replace("fill:85", "")) / 1024
elif play.get("random") or play.get("needs", knobs[0]) not in knobs:
    losses[-1] += int.from_bytes(os.urandom(4), "little")
def write(kind, suffix, data):
    (out / f"{kind}-r0-{os.getpid()}{suffix}").write_bytes(data)
attested = {"pid": os.getpid(), "rank": 0, "applied": {"seed": "42"}, "problems": []}
write("process", ".json", json.dumps(attested).encode())
lines = [
    {
        "step": step,
        "optimizer": 0,
        "loss": {"dtype": "float64", "hex": loss.hex()},
        "backwards": 1,
        "samples": play.get("samples"),
        "parameters": "sha256:" + hashlib.sha256(repr(losses[:step]).encode()).hexdigest(),
        "seconds": None if step == 1 else seconds * (1 + 0.001 * (step % 3)),
    }
    for step, loss in enumerate(losses, start=1)
]
write("steps", ".jsonl", b"".join(json.dumps(line).encode() + b"\\n" for line in lines))
drawn = hashlib.sha256(repr(losses).encode() + play.get("weights", "").encode()).digest()
# numbers below one: the digest's bytes themselves can read as NaN, which no training may end in
weights = struct.pack("<8f", *(part / 2**32 for part in struct.unpack("<8I", drawn)))
entry = {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}
header = json.dumps({play.get("tensor", "model/0/weight"): entry}).encode()
write("state", ".safetensors", len(header).to_bytes(8, "little") + header + weights)
if os.environ.get("REPRO_GATE_NOISE") and play.get("gradients", True):
    header = json.dumps({"gradient/000000": entry}).encode()
    content = struct.pack("<8f", 0.1, 0.2, 0.3, 0.4, 1e6, -1e6, 0.7, 0.8)
    write("gradients", ".safetensors", len(header).to_bytes(8, "little") + header + content)
environment = {"python": "3.11.7", "torch": "2.13.0", "device": "cpu", "world_size": "1"}
environment.update(play.get("environment", {}))
summary = {
    "steps": len(losses),
    "stopped_by": "max_steps",
    "environment": environment,
    "peak_memory_bytes": 1000,
    "device_memory_bytes": 0,
    "first_step_seconds": 1.5,
    "problems": play.get("problems", []),
    "configuration": play.get("configuration", {}),
}
write("summary", ".json", json.dumps(summary).encode())
if "counted" in play:
    empty = dict.fromkeys(("refused", "uses", "modules", "autotuners", "extensions"), ())
    told = {"pid": os.getpid(), "rank": 0, "dropped": 0, **empty, **play["counted"]}
    write("operators", ".json", json.dumps(told).encode())
if "exit" in play:
    sys.exit(play["exit"])
if traced and "trace" in play:
    text = "".join(json.dumps(line) + "\\n" for line in play["trace"])
    write("trace", ".jsonl", text.replace("DRAWN", os.urandom(4).hex()).encode())
if "overrides" in play:
    write("overrides", ".jsonl", json.dumps(play["overrides"]).encode())
for name, text in play.get("files", {}).items():
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    (here / name).write_text(text)
"""
# each of its processes is a rank, as the variables say; the ranks do not talk to each other
WITH_RANKS = (
    SCRIPT.replace("-r0-", "-r{os.environ['RANK']}-")
    .replace('"rank": 0', '"rank": int(os.environ["RANK"])')
    .replace('"world_size": "1"', '"world_size": os.environ["WORLD_SIZE"]')
    .replace(
        'print(play.get("says"',
        'play.update(play.get("rank" + os.environ["RANK"], {}))\nprint(play.get("says"',
    )
)
# A training whose result depends on a package: its version is in the environment, and its factor in
# every loss.
WITH_PACKAGE = SCRIPT.replace(
    'losses = [float(text) for text in play["losses"]]\n',
    "import auditlib\n"
    'losses = [float(text) * auditlib.SCALE for text in play["losses"]]\n'
    "packages = hashlib.sha256(auditlib.VERSION.encode()).hexdigest()\n"
    'play.setdefault("environment", {})["packages"] = packages\n',
)
SETTINGS = """\
version: 1
train:
  command: python3 train.py
  max_steps: 3
isolation: {mode: none}
"""


class Project(Repository):
    """A repository with a played training; methods change one thing and return the new commit."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.write("train.py", SCRIPT)
        self.write("repro-gate.yml", SETTINGS)
        self.play()

    def play(self, **what: object) -> str:
        """Change what the training does from now on; the arguments are keys of `play.json`."""
        played = {"losses": ["2.5", "2.25", "2.125"], **what}
        self.write("play.json", json.dumps(played))
        return self.commit()

    def settings(self, extra: str) -> str:
        """Append to the settings file."""
        self.write("repro-gate.yml", SETTINGS + extra)
        return self.commit()
