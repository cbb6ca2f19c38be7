"""Plant one fault after the other into a copy of this tree, and see which tests find it.

Each row is a fault that somebody could make: an operator flipped, a branch removed, a bound moved.
It is found where a test fails with it and passes without it. A row that nothing finds names a law
that no test holds. `make planted-faults` writes `docs/results/planted-faults.md`; with names of
packages, `FAULTS="verdict text"`, it prints these alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS_FAILED = 1
# an id may hold spaces; behind it stands why it failed
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
SECONDS = 900
# tests that fail without the fault too, before a row is given up
MOST_ANYWAY = 4


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


PAGE = """\
# Planted faults

`make planted-faults`: each fault of `scripts/planted_faults.json` is planted alone into a copy of
this tree, and is found where a test fails with it and passes without it. One that nothing finds
names a law that no test holds.

Commit {commit}: {found} of {all} found.

| file | fault | found by |
|---|---|---|
{rows}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """Whether a planted fault was found, and by which test, or why not."""

    found: bool
    told: str


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


def near(tree: Path, fault: Fault) -> tuple[str, ...]:
    """The test files that name the faulty module, then the whole folder: the likely ones first."""
    name = re.compile(rf"\b{Path(fault.file).stem}\b")
    files = sorted((tree / fault.tests).rglob("test_*.py"))
    likely = (one for one in files if name.search(one.read_text("utf-8")))
    return (*(str(one.relative_to(tree)) for one in likely), fault.tests)


def tested(tree: Path, *words: str) -> tuple[int, str]:
    """The exit code of pytest, which stops at the first test that fails, and that test's id."""
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
    failed = FAILED.search(done.stdout.decode(errors="replace"))
    return done.returncode, failed[1] if failed else ""


def ending(tree: Path, fault: Fault) -> Ending:
    """Whether a test fails with the fault and passes without it; the copy is then as before."""
    file = tree / fault.file
    text = file.read_text("utf-8")
    anyway: list[str] = []
    while len(anyway) < MOST_ANYWAY:
        left_out = (f"--deselect={test}" for test in anyway)
        file.write_text(fault.planted(text), "utf-8")
        try:
            # what failed for the fault before this one says nothing of it
            code, test = tested(tree, "--cache-clear", *left_out, *near(tree, fault))
        except subprocess.TimeoutExpired:
            # a loop that never ends is seen by whoever waits for it
            return Ending(found=True, told="a loop that did not end")
        finally:
            file.write_text(text, "utf-8")
        if code != TESTS_FAILED:
            break
        # pytest stops at the first: one that fails anyway is left out, and the others asked again
        if tested(tree, "--last-failed", fault.tests)[0] == 0:
            return Ending(found=True, told=f"`{test}`")
        anyway.append(test)
    besides = f"; fails without it too: {', '.join(anyway)}" if anyway else ""
    return Ending(found=False, told=f"**NOT FOUND**{besides}")


def row(fault: Fault, told: str) -> str:
    """A row of a table; a bar would end the cell."""
    cells = (fault.file, f"`{fault.old}` → `{fault.new}`", told)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def commit_of(tree: Path) -> str:
    """The commit that is checked out, and whether files differ from it."""
    command = ("git", "-C", str(tree), "describe", "--always", "--dirty", "--exclude=*")
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def main(words: list[str]) -> int:
    """Print a row for each fault; 1 where one of them was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="all without one")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a page of all rows")
    asked = parser.parse_args(words)
    unknown = set(asked.packages) - set(map(package_of, planned()))
    if unknown:
        parser.error(f"no fault is in {', '.join(sorted(unknown))}")
    faults = [one for one in planned() if not asked.packages or package_of(one) in asked.packages]
    # a page of some would read as one of all
    if asked.write is not None and asked.packages:
        parser.error("--write takes all packages")
    commit, rows, missed = commit_of(ROOT), [], 0
    with tempfile.TemporaryDirectory(prefix="repro-gate-faults-") as folder:
        tree = Path(folder)
        copy_of_tree(tree)
        for fault in faults:
            told = ending(tree, fault)
            missed += not told.found
            rows.append(row(fault, told.told))
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
    if asked.write is not None:
        found = len(faults) - missed
        page = PAGE.format(commit=commit, found=found, all=len(faults), rows="\n".join(rows))
        asked.write.write_text(page, "utf-8")
    sys.stdout.write(f"{len(faults) - missed} of {len(faults)} planted faults found\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
