"""A played training whose last loss depends on a function of the test: `amount()` of depends.py.

It also writes what the real harness saw of that file, as a training with torch does.
"""

from __future__ import annotations

from pathlib import Path

from played_training import SCRIPT, Project

PLAYED = SCRIPT.replace(
    'losses = [float(text) for text in play["losses"]]\n',
    "import zlib\n"
    "from repro_gate_harness.variation_readings import tell_code\n"
    "from repro_gate_harness.sources.recorded import SOURCES\n"
    "told = []\n"
    "SOURCES.subscribe(told.append)\n"
    "import depends\n"
    'losses = [float(text) for text in play["losses"]]\n'
    "losses[-1] += zlib.crc32(repr(depends.amount()).encode()) / 2**32\n"
    # the harness asks where torch is installed, since torch's files are not the user's
    "sys.modules['torch'] = type(sys)('torch')\n"
    "sys.modules['torch'].__file__ = '/nowhere/torch/__init__.py'\n"
    'tell_code(os.environ.get("REPRO_GATE_SHAKE", ""))\n',
)
SOURCES = """
lines = [
    {
        "step": 1,
        **{key: getattr(one, key) for key in ("kind", "call", "before", "after", "stack")},
        "file": one.place.file,
        "line": one.place.line,
        "worker": False,
        "thread": False,
    }
    for one in told
]
write("sources", ".jsonl", b"".join(json.dumps(line).encode() + b"\\n" for line in lines))
"""


class Shaken(Project):
    """A repository with such a training, which at first depends on nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.write("train.py", PLAYED + SOURCES)
        self.hangs_on("def amount(): return 0\n")

    def hangs_on(self, source: str) -> str:
        """Make the result depend on what `amount` in this module returns."""
        self.write("depends.py", source)
        return self.commit()

    def with_variable(self, name: str, value: str) -> str:
        """Set a variable for the training by its settings."""
        settings = (self.path / "repro-gate.yml").read_text()
        self.write(
            "repro-gate.yml",
            settings.replace("train:\n", f"train:\n  env: {{{name}: '{value}'}}\n"),
        )
        return self.commit()
