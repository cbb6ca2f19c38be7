"""Plant one fault after the other into a copy of this tree, and see which tests find it.

Each row is a fault that somebody could make: an operator flipped, a branch removed, a bound moved.
It is found where its tests fail with it and pass without it. A row that nothing finds names a law
that no test holds. `make planted-faults`, or with names of packages: `FAULTS="verdict codec"`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS_FAILED = 1
FOUND = "found"
SECONDS = 900


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """In `file`, `old` becomes `new`; `tests` is the folder that ought to find it."""

    file: str
    old: str
    new: str
    tests: str

    def planted(self, text: str) -> str:
        """The file's text with the fault; raises `ValueError` where it has no one place for it."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times: {self.old}")
        return text.replace(self.old, self.new)


def planned() -> tuple[Fault, ...]:
    """All faults, which stand as data beside this file."""
    rows = json.loads((ROOT / "scripts" / "planted_faults.json").read_text("utf-8"))
    return tuple(Fault(**row) for row in rows)


def package_of(fault: Fault) -> str:
    """The package that the fault is in."""
    return fault.file.split("/")[1]


def copy_of_tree(target: Path) -> None:
    """Every file that git has, as it is here: some tests read workflows and pages."""
    command = ("git", "-C", str(ROOT), "ls-files", "-z")
    listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def tested(tree: Path, *words: str) -> int:
    """The exit code of pytest, which stops at the first test that fails."""
    command = (
        *(sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--timeout", "300"),
        *("-m", "not torch and not slow and not gpu and not docker", *words),
    )
    # the copy goes before what is installed, and draws the same examples each time
    variables = {**os.environ, "PYTHONPATH": str(tree), "CI": "true"}
    # Python would take the byte-code of a text of equal size and second for that of this one
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        command, cwd=tree, env=variables, capture_output=True, timeout=SECONDS, check=False
    )
    return done.returncode


def ending(tree: Path, fault: Fault) -> str:
    """Whether a test fails with the fault and passes without it; the copy is then as before."""
    file = tree / fault.file
    text = file.read_text("utf-8")
    file.write_text(fault.planted(text), "utf-8")
    try:
        failed = tested(tree, fault.tests) == TESTS_FAILED
    except subprocess.TimeoutExpired:
        # a loop that never ends is seen by whoever waits for it
        return FOUND
    finally:
        file.write_text(text, "utf-8")
    if not failed:
        return "NOT FOUND"
    # pytest stops at the first: behind one that fails anyway nothing is known
    alone = tested(tree, "--last-failed", fault.tests) == 0
    return FOUND if alone else "NOT KNOWN: a test fails without it too"


def main(words: list[str]) -> int:
    """Print a row for each fault; 1 where one of them was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="all without one")
    asked = parser.parse_args(words)
    unknown = set(asked.packages) - set(map(package_of, planned()))
    if unknown:
        parser.error(f"no fault is in {', '.join(sorted(unknown))}")
    faults = [one for one in planned() if not asked.packages or package_of(one) in asked.packages]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="repro-gate-faults-") as folder:
        tree = Path(folder)
        copy_of_tree(tree)
        for fault in faults:
            told = ending(tree, fault)
            missed += told != FOUND
            sys.stdout.write(f"| {fault.file} | `{fault.old}` → `{fault.new}` | {told} |\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(faults) - missed} of {len(faults)} planted faults found\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
