"""Plant one fault after the other into a copy of this tree, and see which tests find it.

Each row is a mistake that somebody could make: an operator flipped, a branch removed, a bound
moved. A fault counts as found if a test fails with it and passes without it. A fault that no test
finds shows a gap in the tests. `make planted-faults` writes `docs/results/planted-faults.md`. With
names of packages, as in `FAULTS="verdict text"`, it only prints the faults of these.
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
# the id of a test may contain spaces; ` - ` and the reason follow it
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
SECONDS = 900
# after this many tests that also fail without the fault, a row is given up
MOST_ANYWAY = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault: in `file`, `old` becomes `new`; a test in the folder `tests` should find it."""

    file: str
    old: str
    new: str
    tests: str

    def planted(self, text: str) -> str:
        """Return the file's text with the fault.

        Raises `ValueError` unless `old` occurs exactly once: the code has changed since.
        """
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
    """Whether a planted fault was found; `told` is the test that found it, or why none did."""

    found: bool
    told: str


def planned() -> tuple[Fault, ...]:
    """Return all faults, read from planted_faults.json beside this file."""
    rows = json.loads((ROOT / "scripts" / "planted_faults.json").read_text("utf-8"))
    return tuple(Fault(**row) for row in rows)


def package_of(fault: Fault) -> str:
    """Return the package of `gate/` that contains the fault."""
    return fault.file.split("/")[1]


def copy_of_tree(target: Path) -> None:
    """Copy every file that git tracks, with uncommitted changes.

    All of them and not only the code, because some tests read workflows and pages.
    """
    command = ("git", "-C", str(ROOT), "ls-files", "-z")
    listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def near(tree: Path, fault: Fault) -> tuple[str, ...]:
    """Return what pytest should run: the test files that name the module, then the whole folder.

    pytest stops at the first failure, so the likely files come first.
    """
    name = re.compile(rf"\b{Path(fault.file).stem}\b")
    files = sorted((tree / fault.tests).rglob("test_*.py"))
    likely = (one for one in files if name.search(one.read_text("utf-8")))
    return (*(str(one.relative_to(tree)) for one in likely), fault.tests)


def tested(tree: Path, *words: str) -> tuple[int, str]:
    """Run pytest until the first failure; return its exit code and the id of the failed test."""
    command = (
        *(sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--timeout", "300"),
        *("-m", "not torch and not slow and not gpu and not docker", *words),
    )
    # PYTHONPATH puts the copy before the installed package. CI makes hypothesis draw the same
    # examples each time.
    variables = {**os.environ, "PYTHONPATH": str(tree), "CI": "true"}
    # Python checks cached bytecode by the source's size and time in seconds. A fault of equal size
    # planted within a second would run the bytecode of the other text.
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        command, cwd=tree, env=variables, capture_output=True, timeout=SECONDS, check=False
    )
    failed = FAILED.search(done.stdout.decode(errors="replace"))
    return done.returncode, failed[1] if failed else ""


def ending(tree: Path, fault: Fault) -> Ending:
    """Plant the fault, run the tests, and restore the file.

    The fault is found if a test fails with it and passes without it.
    """
    file = tree / fault.file
    text = file.read_text("utf-8")
    anyway: list[str] = []
    while len(anyway) < MOST_ANYWAY:
        left_out = (f"--deselect={test}" for test in anyway)
        file.write_text(fault.planted(text), "utf-8")
        try:
            # clear pytest's cache: it has the failures of the fault before this one
            code, test = tested(tree, "--cache-clear", *left_out, *near(tree, fault))
        except subprocess.TimeoutExpired:
            # a fault that makes the tests hang cannot go unnoticed, so it counts as found
            return Ending(found=True, told="a loop that did not end")
        finally:
            file.write_text(text, "utf-8")
        if code != TESTS_FAILED:
            break
        # If the failed test passes without the fault, it found the fault. If it fails anyway, leave
        # it out and run the others, because pytest stopped before them.
        if tested(tree, "--last-failed", fault.tests)[0] == 0:
            return Ending(found=True, told=f"`{test}`")
        anyway.append(test)
    besides = f"; fails without it too: {', '.join(anyway)}" if anyway else ""
    return Ending(found=False, told=f"**NOT FOUND**{besides}")


def row(fault: Fault, told: str) -> str:
    """Return a row of the table, with bars escaped since they would end a cell."""
    cells = (fault.file, f"`{fault.old}` → `{fault.new}`", told)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def commit_of(tree: Path) -> str:
    """Return the checked-out commit, with `-dirty` if files differ from it."""
    command = ("git", "-C", str(tree), "describe", "--always", "--dirty", "--exclude=*")
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def main(words: list[str]) -> int:
    """Print a row for each fault; return 1 if any was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="all without one")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a page of all rows")
    asked = parser.parse_args(words)
    unknown = set(asked.packages) - set(map(package_of, planned()))
    if unknown:
        parser.error(f"no fault is in {', '.join(sorted(unknown))}")
    faults = [one for one in planned() if not asked.packages or package_of(one) in asked.packages]
    # a page of some packages would read as if it were complete
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
