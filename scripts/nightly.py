"""Run the checks that take too long for every change, and write one summary: `make nightly`.

Each part is a target of the Makefile. Its result is written, with its commit, before the next part
starts. So a night that was interrupted continues where it stopped: a part that passed at this
commit is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMMARY = "summary.json"
PASSED = "passed"
# Files of the tree that parts rewrite. They must not count as uncommitted changes, or a night that
# was interrupted would start over.
PAGES = ("docs/results", "docs/security.md", "docs/verification.md")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A target of the Makefile, its time limit, and the project's claim that it checks."""

    target: str
    minutes: int
    claim: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a part ended; `commit` ends with `-dirty` if files differed from it.

    `ended` is the time in UTC.
    """

    part: str
    result: str
    commit: str
    minutes: float
    ended: str


PARTS = (
    Part(target="test-properties", minutes=90, claim="laws with 1,000 examples each"),
    Part(target="planted-faults", minutes=90, claim="a planted fault fails a test"),
    Part(target="test-slow", minutes=120, claim="ranks, compilers, whole measurements"),
    Part(target="test-frameworks", minutes=90, claim="Lightning, transformers, accelerate"),
    Part(target="test-pythons", minutes=90, claim="Python 3.11, 3.12 and 3.13"),
    Part(target="test-zoo", minutes=240, claim="planted faults are diagnosed"),
    Part(target="test-pairs", minutes=180, claim="every two features of a project together"),
    Part(target="security", minutes=60, claim="the hostile attempts of docs/security.md fail"),
    Part(target="container", minutes=120, claim="the image, as GitHub's runner runs it"),
    Part(target="interop", minutes=30, claim="openssl, cosign and others verify the seals"),
    Part(target="interop-publish", minutes=30, claim="a real registry and a real MLflow server"),
    Part(target="slurm", minutes=60, claim="several nodes under Slurm's real daemons"),
    Part(target="ops", minutes=20, claim="Prometheus, Pushgateway and Alertmanager run ops/"),
    Part(target="bundle-check", minutes=20, claim="Sigstore's clients verify keyless seals"),
    Part(target="api-check", minutes=20, claim="requests fit GitHub's own description"),
    Part(target="fuzz", minutes=60, claim="no input breaks a reader of untrusted bytes"),
    Part(target="newcomer", minutes=90, claim="README and quick start on a bare system"),
)
Run = Callable[[Part, Path], str]


def run_part(part: Part, log: Path, root: Path = ROOT) -> str:
    """Run `make` for the part, with its output in `log`; return how it ended, in a few words."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ("make", "--no-print-directory", part.target),
            cwd=root,
            stdout=output,
            stderr=subprocess.STDOUT,
            # a separate process group, so that a timeout can kill all of it: make does not kill its
            # children
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=part.minutes * 60)
        except subprocess.TimeoutExpired:
            return f"timed out after {part.minutes} min"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return PASSED if code == 0 else f"failed with exit code {code}"


def commit_of(root: Path) -> str:
    """Return HEAD's hash, with `-dirty` if files other than `PAGES` differ from it."""

    def git(*words: str) -> str:
        command = ("git", "-C", str(root), *words)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", *(f":(exclude){page}" for page in PAGES))
    return git("rev-parse", "HEAD") + ("-dirty" if changed else "")


def read_summary(folder: Path) -> dict[str, Result]:
    """Return the results so far, by part; none if the summary is missing or malformed."""
    try:
        rows = json.loads((folder / SUMMARY).read_text("utf-8"))
        return {row["part"]: Result(**row) for row in rows}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def write_summary(folder: Path, results: Iterable[Result]) -> None:
    """Write the summary with one rename, so that an interruption leaves the old file or the new."""
    rows = [asdict(result) for result in results]
    partial = folder / f"{SUMMARY}.partial"
    partial.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / SUMMARY)


def run_parts(
    parts: Iterable[Part], folder: Path, commit: str, run: Run, say: Callable[[str], None]
) -> Mapping[str, Result]:
    """Run each part that has not passed at this commit; one that fails does not stop the others."""
    folder.mkdir(parents=True, exist_ok=True)
    results = read_summary(folder)
    for part in parts:
        before = results.get(part.target)
        # not for a dirty tree: its uncommitted files may have changed since that result
        settled = before is not None and (before.result, before.commit) == (PASSED, commit)
        if settled and not commit.endswith("-dirty"):
            say(f"{part.target}: passed at this commit already")
            continue
        say(f"{part.target}: started, {part.minutes} min at most")
        begun = time.monotonic()
        log = folder / f"{part.target}.log"
        results[part.target] = result = Result(
            part=part.target,
            result=run(part, log),
            commit=commit,
            minutes=round((time.monotonic() - begun) / 60, 1),
            ended=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        write_summary(folder, results.values())
        say(f"{part.target}: {result.result} in {result.minutes} min; see {log}")
    return results


def table(parts: Iterable[Part], results: Mapping[str, Result]) -> str:
    """Return the results as a Markdown table, with a row for each part that has not run."""
    lines = ["| part | result | commit | min | what rests on it |", "|---|---|---|---|---|"]
    for part in parts:
        result = results.get(part.target)
        told = ("not run", "", "") if result is None else _told(result)
        lines.append(f"| {' | '.join((part.target, *told, part.claim))} |")
    return "\n".join(lines)


def _told(result: Result) -> tuple[str, str, str]:
    dirty = "-dirty" if result.commit.endswith("-dirty") else ""
    return result.result, result.commit[:10] + dirty, str(result.minutes)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    # people follow a running night in its log
    sys.stdout.flush()


def main(words: list[str]) -> int:
    """Run the named parts, or all; return 1 unless each of them has passed at this commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="all parts without one")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "nightly")
    asked = parser.parse_args(words)
    known = {part.target: part for part in PARTS}
    unknown = [name for name in asked.parts if name not in known]
    if unknown:
        parser.error(f"no part is called {unknown[0]}; parts are {', '.join(known)}")
    parts = [known[name] for name in asked.parts or known]
    commit = commit_of(ROOT)
    results = run_parts(parts, asked.out, commit, run_part, _say)
    _say(f"{table(parts, results)}\nsummary: {asked.out / SUMMARY}")
    ended = [results[part.target] for part in parts]
    return int(any((one.result, one.commit) != (PASSED, commit) for one in ended))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
