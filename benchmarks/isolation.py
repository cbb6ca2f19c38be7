"""Measure what isolation adds to a run, part by part. `make bench-isolation`, as root.

Starts processes that do nothing, in turn under `none` and under `uid`, and times everything else
that the gate does around a run under a separate account. The program prints a Markdown page;
`--out FILE` also writes it to a file.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from gate.isolation.account_choice import choose_isolation
from gate.isolation.modes import (
    Credentials,
    Isolation,
    IsolationMode,
    IsolationSettings,
    WriteGuard,
)
from gate.isolation.process_request import ProcessRequest
from gate.isolation.processes import LocalProcesses
from gate.isolation.restricted_paths import restrict_access
from gate.isolation.stop_signals import StopSignals
from gate.system.files.files import LocalFiles
from gate.training.isolating import end_account
from gate.training.launch import prepare_folders, run_folders
from gate.training.run_folders import made_harness
from gate.training.runs import Snapshot

ROUNDS = 15
LIMIT_SECONDS = 0.5
MILLI = 1000
CODE_FILES = 2000
CODE_FILE_BYTES = 4096
SYSTEM_PYTHON = "/usr/bin/python3"
OWN_LIMIT_SECONDS = 0.1
# imports that read a few hundred files, as every training does before its first line
IMPORTS = (
    *(SYSTEM_PYTHON, "-S", "-B", "-c"),
    (
        "import asyncio, email.mime.text, http.server, multiprocessing.pool, sqlite3, "
        "unittest.mock, xml.dom.minidom"
    ),
)
FILES = LocalFiles()
PROCESSES = LocalProcesses()


def seconds(action: Callable[[], object]) -> float:
    """Run the action once and return its seconds."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def nothing(account: Credentials | None) -> None:
    """Start a process that ends at once, under the account or under this process's own."""
    request = ProcessRequest(
        argv=("true",),
        env={"PATH": os.defpath},
        workdir=Path("/"),
        timeout_seconds=60,
        output_limit_bytes=4096,
        credentials=account,
    )
    PROCESSES.run(request, lambda _: None)


def in_view(argv: tuple[str, ...], account: Credentials, folder: Path) -> None:
    """Start a process as the gate starts a run: in a private folder, with the account's namespaces.

    Ends the program if the process fails.
    """
    request = ProcessRequest(
        argv=argv,
        env={"PATH": os.defpath},
        workdir=folder,
        timeout_seconds=60,
        output_limit_bytes=4096,
        credentials=account,
        writable=(folder,),
    )
    result = PROCESSES.run(request, lambda _: None)
    if result.exit_code != 0:
        sys.exit(f"error: {result.output.decode(errors='replace')}\nhint: Try it by hand.")


def own_things(root: Path, account: Credentials) -> dict[str, list[tuple[float, float]]]:
    """Return pairs of seconds: with a mount namespace alone, and with all that a run has alone."""
    folder = root / "own"
    FILES.fresh_folder(folder)
    FILES.give_to(folder, account.uid, account.gid)
    sharing = replace(account, own=())
    found: dict[str, list[tuple[float, float]]] = {"start": [], "imports": []}
    for _ in range(ROUNDS):
        for name, argv in (("start", ("true",)), ("imports", IMPORTS)):
            pair = [seconds(partial(in_view, argv, who, folder)) for who in (sharing, account)]
            found[name].append((pair[0], pair[1]))
    return found


def project(root: Path) -> Snapshot:
    """Create the exported code of a medium repository, with `CODE_FILES` files."""
    tree = root / "out" / "work" / "head-snapshot"
    for number in range(CODE_FILES):
        path = tree / f"package{number % 40}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(CODE_FILE_BYTES))
    return Snapshot(commit="a" * 40, tree=tree, workdir=".", digest=FILES.tree_digest(tree))


def measured(root: Path, account: Credentials) -> tuple[dict[str, list[float]], list[float]]:
    """Return the seconds of each part in each round, and those of the work once per call."""
    snapshot = project(root)
    way = root / "out" / "work" / "run"
    FILES.fresh_folder(way)
    apart = Isolation(mode=IsolationMode.UID, credentials=account, reason="measured")
    alone = Isolation(mode=IsolationMode.NONE, credentials=None, reason="measured")
    folders = run_folders(way)

    def closing() -> None:
        with restrict_access((root / "out",), way, StopSignals()):
            pass

    def giving() -> None:
        for folder in (folders.tree, folders.home, folders.tmp, folders.out):
            FILES.give_to(folder, account.uid, account.gid)

    def choosing() -> None:
        choose_isolation(IsolationSettings(), PROCESSES, SYSTEM_PYTHON, (way.parent,))

    parts: dict[str, list[float]] = {
        name: [] for name in ("process", "folders", "clean up", "close")
    }
    harness = made_harness(FILES)
    for _ in range(ROUNDS):
        parts["process"].append(seconds(lambda: nothing(account)) - seconds(lambda: nothing(None)))
        prepare_folders(FILES, snapshot, folders, alone, harness)
        parts["folders"].append(seconds(giving))
        parts["clean up"].append(seconds(lambda: end_account(apart)))
        parts["close"].append(seconds(closing))
    once = [
        seconds(choosing) + 2 * seconds(lambda: FILES.tree_digest(snapshot.tree))
        for _ in range(ROUNDS)
    ]
    return parts, once


def own_page(found: dict[str, list[tuple[float, float]]], account: Credentials) -> str:
    """Return the part of the page about keeping parallel runs apart from each other."""
    if not account.own:
        return "Runs have nothing of their own here, and go one after the other.\n"
    words = {
        "start": "start and end of a process that does nothing",
        "imports": "the same with a few hundred files of the standard library imported",
    }
    added = statistics.median(with_ - without for without, with_ in found["start"])
    verdict = "within" if added <= OWN_LIMIT_SECONDS else "ABOVE"
    rows = [
        f"| {words[name]} | {_spread([one for one, _ in pairs])} "
        f"| {_spread([two for _, two in pairs])} "
        f"| {statistics.median(two / one for one, two in pairs):.2f} |"
        for name, pairs in found.items()
    ]
    lines = [
        (
            f"What a run has of its own ({', '.join(account.own)}), side by side with a run that "
            "has a mount namespace alone:"
        ),
        "",
        "| | mount namespace, ms | with its own, ms | ratio |",
        "|---|---|---|---|",
        *rows,
        "",
        (
            f"It adds {added * MILLI:.0f} ms to a run, {verdict} the limit of "
            f"{OWN_LIMIT_SECONDS * MILLI:.0f}."
        ),
        "",
    ]
    return "\n".join(lines)


def page(parts: dict[str, list[float]], once: list[float], guard: WriteGuard) -> str:
    """Return the results as Markdown, in milliseconds."""
    words = {
        "process": "sandbox launcher, start and end of a process under `uid`, beyond `none`",
        "folders": "giving the run's folders to the account",
        "clean up": "ending the account, wiping what it left in shared folders",
        "close": "closing the private places and giving access back",
    }
    rows = [f"| {words[name]} | {_spread(found)} |" for name, found in parts.items()]
    total = statistics.median([sum(values) for values in zip(*parts.values(), strict=True)])
    verdict = "within" if total < LIMIT_SECONDS else "ABOVE"
    about = (
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} CPUs, "
        f"Linux {platform.release()}, Python "
        f"{platform.python_version()}; {ROUNDS} rounds, a repository of {CODE_FILES:,} files; "
        f"writing is guarded by: {guard.value}."
    )
    limit = f"{verdict} the limit of {LIMIT_SECONDS * MILLI:.0f}"
    lines = [
        "# What isolation costs a run",
        "",
        f"Written by `make bench-isolation`. {about}",
        "",
        "| part, each run | median ms (smallest to largest) |",
        "|---|---|",
        *rows,
        f"| **sum** | **{total * MILLI:.0f}**, {limit} |",
        f"| once a call: the trial, the exported code's digest twice | {_spread(once)} |",
        "",
    ]
    return "\n".join(lines)


def _spread(found: list[float]) -> str:
    low, high = min(found) * MILLI, max(found) * MILLI
    return f"{statistics.median(found) * MILLI:.1f} ({low:.1f} to {high:.1f})"


def main() -> None:
    """Measure, print the page, and write it to `--out` if that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="Write the page to this file as well.")
    out: Path | None = parser.parse_args().out
    # the account, and the way to guard writes, that a gate call would choose on this machine
    account = choose_isolation(IsolationSettings(), PROCESSES, SYSTEM_PYTHON, ()).credentials
    if account is None:
        sys.exit("error: another account is needed\nhint: Run this as root, on Linux.")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        text = page(*measured(root, account), account.guard)
        text += "\n" + own_page(own_things(root, account), account)
    print(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
