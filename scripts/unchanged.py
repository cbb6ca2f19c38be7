"""Check that a change of the code changed no result: `make unchanged BASE=COMMIT`.

    unchanged.py BASE [--scene NAME ...] [--keep FOLDER]

The program of commit BASE gates each scene twice, and the program of this tree once. All calls use
the same commits and the same key. Everything that the two calls of BASE agree on, this tree must
repeat: exit codes, `verdict.json`, the sealed statement, the comment, the proposed baseline, and
the output of `digest` and `verify` for the package. What differs between the two calls of BASE
(times, shares of cost, names of folders) proves nothing and is ignored. The share of memory varies
by a tenth of a percent between runs, and may be equal in two calls by chance. A difference of up to
one percent is therefore ignored.

The script also compares the digests of tests/vectors and every `--help`, and reports how long both
programs take to start. It ends with 1 if a result changed; times are informational.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher, unified_diff
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
CONFIG: Final = "repro-gate.yml"
STARTS: Final = 7
SHOWN_LINES: Final = 40
GIT: Final = {
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}
WHO: Final = ("-c", "user.name=unchanged", "-c", "user.email=unchanged@invalid")
# the paths of measured times, which on an idle machine are equal in two calls by chance
TIMES: Final = ".timeline."
SECONDS: Final = re.compile(r"\b\d+\.\d\d s\b")
MEMORY_SHARE: Final = ".memory_ratio"
SAME_SHARE: Final = 0.01
# a small share of memory as reports write it: `memory +0.1 %`, `| Peak memory | -0.3 % |`
SMALL_MEMORY: Final = re.compile(r"(memory\W{1,20}?)[+-]0\.\d %", re.IGNORECASE)
TRAIN: Final = """\
import random

import torch

LEARNING_RATE = 0.1
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
for step in range(12):
    inputs = torch.randn(16, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
"""
SETTINGS: Final = """\
version: 1
train:
  command: python train.py
  max_steps: 20
  timeout_seconds: 300
  checkpoint: last.pt
"""
EXAMPLES: Final = ("chargpt", "digits", "diverges", "drifts")
# what a call writes for others to read, besides verdict.json
DOCUMENTS: Final = ("verdict.json", "proposed-baseline.json", "badge.json")
SEALS: Final = ("package.dsse.json", "package.provenance.dsse.json")
TEXTS: Final = ("comment.md", "summary.md")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """A project whose first commit makes the baseline (where `recorded`), and what changes then."""

    name: str
    files: Mapping[str, str]
    changed: Mapping[str, str] = field(default_factory=dict)
    recorded: bool = True


@dataclass(frozen=True, slots=True)
class Said:
    """What one program said of one scene: JSON values by path, lines of text by name."""

    values: Mapping[str, Any]
    lines: Mapping[str, Sequence[str]]


def scenes() -> tuple[Scene, ...]:
    """Small projects, one for each outcome that needs no other machine, and the examples."""
    plain = {"train.py": TRAIN, CONFIG: SETTINGS}

    def change(name: str, old: str, new: str, *, recorded: bool = True) -> Scene:
        if TRAIN.count(old) != 1:
            message = f"{name}: the training has not one {old!r}"
            raise ValueError(message)
        return Scene(
            name=name, files=plain, changed={"train.py": TRAIN.replace(old, new)}, recorded=recorded
        )

    tolerant = f"{SETTINGS}compare:\n  tolerances:\n    - metric: loss\n      relative: 0.5\n"
    return (
        Scene(name="reproduced", files=plain),
        Scene(name="no-baseline", files=plain, recorded=False),
        change("code-drift-rate", "LEARNING_RATE = 0.1", "LEARNING_RATE = 0.11"),
        change("code-drift-model", "torch.nn.ReLU()", "torch.nn.GELU()"),
        change("nondeterministic", "randn(16, 8)", "randn(16, 8) + random.SystemRandom().random()"),
        change("fewer-steps", "range(12)", "range(9)"),
        change("not-a-number", "square().mean()", "square().mean().sub(1e9).sqrt()"),
        change("raises", "    loss.backward()", "    loss.backwards()"),
        change("trains-nothing", "range(12)", "range(0)"),
        Scene(
            name="within-tolerance",
            files={**plain, CONFIG: tolerant},
            changed={"train.py": TRAIN.replace("LEARNING_RATE = 0.1", "LEARNING_RATE = 0.101")},
        ),
        Scene(
            name="bad-settings", files={**plain, CONFIG: f"{SETTINGS}  repeat: 2\n"}, recorded=False
        ),
        *(_example(name) for name in EXAMPLES),
    )


def _example(name: str) -> Scene:
    folder = ROOT / "examples" / name
    data = ROOT / "examples" / "data"
    files = {
        f"examples/{name}/{path.name}": path.read_text()
        for path in folder.iterdir()
        if path.is_file()
    }
    kept = {f"examples/data/{path.name}": "" for path in data.iterdir()}
    return Scene(name=f"example-{name}", files={**files, **kept}, recorded=name != "diverges")


def write_project(folder: Path, files: Mapping[str, str]) -> None:
    """Write the text of each file; copy those below examples/data, since one is compressed."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("examples/data/"):
            shutil.copyfile(ROOT / name, path)
        else:
            path.write_text(text)


class Program:
    """The repro-gate program of one source tree, started as a user would start it."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree

    def run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a verb in `folder` without a GitHub job's variables; any exit code is accepted."""
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("GITHUB_")},
            **GIT,
            "PYTHONPATH": str(self.tree),
            "PYTHONSAFEPATH": "1",
            "COLUMNS": "100",
            "NO_COLOR": "1",
        }
        return subprocess.run(
            [sys.executable, "-m", "gate", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def git(folder: Path, *words: str) -> str:
    """Run git with fixed dates and no user configuration, and return what it prints.

    Fixed dates give both programs the same commit hashes. Raises `CalledProcessError` on failure.
    """
    done = subprocess.run(
        ["git", *WHO, *words],
        cwd=folder,
        env={**os.environ, **GIT},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def prepare(scene: Scene, program: Program, folder: Path) -> Path:
    """Create the scene's project, record its baseline with `program`, then apply the change.

    Returns the folder of the settings file. Ends the script if the baseline is not accepted.
    """
    write_project(folder, scene.files)
    git(folder, "init", "-q", "-b", "main")
    (folder / ".gitignore").write_text("repro-gate-out/\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    at = next(path.parent for path in folder.rglob(CONFIG))
    if scene.recorded:
        program.run(at, "gate")
        accepted = program.run(at, "baseline", "accept", "--reason", "unchanged.py")
        _demand(accepted, scene.name)
        shutil.rmtree(at / "repro-gate-out")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "baseline")
    if scene.changed:
        write_project(folder, scene.changed)
        git(folder, "commit", "-qam", "change")
    return at


def _demand(ended: subprocess.CompletedProcess[str], what: str) -> None:
    if ended.returncode:
        sys.exit(f"error: {what}: {ended.stdout}{ended.stderr}")


def say(program: Program, at: Path, key: Path) -> Said:
    """Gate the scene once, and return everything that the call printed and wrote.

    `key` is the folder of the signing key. Times and small shares of memory are masked in texts.
    """
    out = at / "repro-gate-out"
    shutil.rmtree(out, ignore_errors=True)
    words = ("--signing-key", str(key / "signing-key.pem"), "--allow-plain-key", "--trusted-keys")
    trusted = str(key / "trusted-keys.json")
    ended = program.run(at, "gate", *words, trusted)
    values: dict[str, Any] = {"exit code": ended.returncode}
    lines: dict[str, Sequence[str]] = {"terminal": (ended.stdout + ended.stderr).splitlines()}
    for name in DOCUMENTS:
        if (out / name).is_file():
            values.update(_flat(name, json.loads((out / name).read_text())))
    for name in SEALS:
        if (out / name).is_file():
            envelope = json.loads((out / name).read_text())
            values.update(_flat(name, json.loads(base64.b64decode(envelope["payload"]))))
    for name in TEXTS:
        if (out / name).is_file():
            lines[name] = (out / name).read_text().splitlines()
    package = out / "package.tar"
    if package.is_file():
        for verb in ("verify", "digest"):
            more = ("--trusted-keys", trusted) if verb == "verify" else ()
            done = program.run(at, verb, str(package), *more)
            values[f"{verb} exit code"] = done.returncode
            lines[verb] = (done.stdout + done.stderr).splitlines()
        with tarfile.open(package) as archive:
            values["members of the package"] = sorted(archive.getnames())
    if out.is_dir():
        values["files written"] = sorted(path.name for path in out.iterdir())
    masked = {
        name: tuple(SECONDS.sub("(time)", SMALL_MEMORY.sub(r"\1(small)", line)) for line in each)
        for name, each in lines.items()
    }
    return Said(values, masked)


def _flat(at: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        yield f"{at} (keys)", sorted(value)
        for key, inner in value.items():
            yield from _flat(f"{at}.{key}", inner)
    elif isinstance(value, list):
        yield f"{at} (length)", len(value)
        for number, inner in enumerate(value):
            yield from _flat(f"{at}[{number}]", inner)
    else:
        yield at, value


def changes(one: Said, again: Said, now: Said) -> Iterator[str]:
    """Return a line for each result that both calls of BASE agree on and this tree changes.

    `one` and `again` are the two calls of BASE, `now` is the call of this tree.
    """
    paths = {*one.values, *again.values, *now.values}
    for path in sorted(path for path in paths if TIMES not in path):
        gone = object()
        first, second, third = (said.values.get(path, gone) for said in (one, again, now))
        if first == second and third != first and not _one_share(path, first, third):
            shown = [
                "(nothing)" if value is gone else repr(value)[:200] for value in (first, third)
            ]
            yield f"{path}: {shown[0]} became {shown[1]}"
    for name in sorted({*one.lines, *now.lines}):
        was, is_now = _steady(one, again, name), list(now.lines.get(name, ()))
        if (name in one.lines) != (name in now.lines):
            yield f"{name}: {'gone' if name in one.lines else 'new'}"
        elif not all(
            len(was) == len(is_now) and (old is None or old == new)
            for old, new in zip(was, is_now, strict=False)
        ):
            shown_was = [new if old is None else old for old, new in zip(was, is_now, strict=False)]
            yield from unified_diff(shown_was, is_now, name, name, lineterm="", n=0)


def _one_share(path: str, was: object, is_now: object) -> bool:
    """Decide whether both are shares of memory that differ by no more than runs do."""
    if not (path.endswith(MEMORY_SHARE) and isinstance(was, float) and isinstance(is_now, float)):
        return False
    return abs(was - is_now) <= SAME_SHARE


def _steady(one: Said, again: Said, name: str) -> list[str | None]:
    """Return the lines of BASE's first call; None stands for a line that its second call lacks."""
    first, second = list(one.lines.get(name, ())), list(again.lines.get(name, ()))
    steady: list[str | None] = [None] * len(first)
    for block in SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks():
        steady[block.a : block.a + block.size] = first[block.a : block.a + block.size]
    return steady


def check_scenes(base: Program, now: Program, names: Sequence[str], keep: Path) -> int:
    """Return how many scenes have a changed result; each scene is printed when it ends."""
    key = keep / "keys"
    made = base.run(keep, "keys", "generate", "--out", str(key), "--allow-plain", "--comment", "-")
    _demand(made, "keys generate")
    failed = 0
    for scene in scenes():
        if names and scene.name not in names:
            continue
        at = prepare(scene, base, keep / scene.name)
        one, again, after = (say(program, at, key) for program in (base, base, now))
        failed += _report(scene.name, list(changes(one, again, after)))
    return failed


def check_prints(base: Program, now: Program, keep: Path) -> int:
    """Return how many fixed texts differ: digests of the vectors, each `--help`, the schema."""
    verbs = re.findall(r"^  ([a-z]+) {2,}\S", base.run(keep, "--help").stdout, re.MULTILINE)
    asked: list[tuple[str, ...]] = [("--help",), ("schema",), *((verb, "--help") for verb in verbs)]
    vectors = sorted((ROOT / "tests" / "vectors").glob("*.[ps][ta]*"))
    asked += [("digest", str(path), "--json") for path in vectors]
    failed = 0
    for words in asked:
        was, is_now = (program.run(keep, *words) for program in (base, now))
        if _result(was) != _result(is_now):
            differ = unified_diff(
                was.stdout.splitlines(), is_now.stdout.splitlines(), lineterm="", n=0
            )
            failed += _report(" ".join(words), [*differ, *is_now.stderr.splitlines()])
    _tell(f"{len(asked)} fixed texts: {failed} changed")
    return failed


def _result(ended: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return ended.returncode, ended.stdout, ended.stderr


def _report(name: str, differences: Sequence[str]) -> int:
    _tell(f"{'changed' if differences else 'same':8} {name}")
    for line in differences[:SHOWN_LINES]:
        _tell(f"         {line}")
    if len(differences) > SHOWN_LINES:
        _tell(f"         … and {len(differences) - SHOWN_LINES} more")
    return bool(differences)


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def report_times(base: Program, now: Program, keep: Path) -> None:
    """Print how long both programs take to start, as the ratio of medians.

    The programs take turns, so that a busy machine slows both.
    """
    vector = str(ROOT / "tests" / "vectors" / "training.pt")
    for words in (("--help",), ("gate", "--help"), ("digest", vector)):
        took: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(STARTS):
            for number, program in enumerate((base, now)):
                took[number].append(_seconds(lambda p=program, w=words: p.run(keep, *w)))  # type: ignore[misc]
        was, is_now = statistics.median(took[0]), statistics.median(took[1])
        _tell(f"{is_now / was:5.2f} x   repro-gate {words[0]} ({was:.2f} s, now {is_now:.2f} s)")


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main() -> int:
    """Compare this tree with BASE; return 1 if any scene or text changed."""
    parser = argparse.ArgumentParser(description="Hold that no result changed.")
    parser.add_argument("base", help="commit whose results are to be kept")
    parser.add_argument("--scene", nargs="*", default=(), choices=[one.name for one in scenes()])
    parser.add_argument("--keep", type=Path, help="keep the scenes in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unchanged-") as temporary:
        keep = options.keep or Path(temporary)
        keep.mkdir(parents=True, exist_ok=True)
        tree = Path(temporary) / "base"
        git(ROOT, "worktree", "add", "--detach", "-q", str(tree), options.base)
        try:
            base, now = Program(tree), Program(ROOT)
            failed = check_prints(base, now, keep)
            failed += check_scenes(base, now, options.scene, keep)
            report_times(base, now, keep)
        finally:
            git(ROOT, "worktree", "remove", "--force", str(tree))
    _tell(f"{failed} changed" if failed else "unchanged")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
