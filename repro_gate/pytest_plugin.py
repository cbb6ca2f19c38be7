"""The pytest plug-in: the marker `reproducible` and the option `--repro-gate-update`.

pytest loads it in every project that has repro-gate installed, with whatever pytest that is: so its
hooks are plain ones, which every pytest knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from repro_gate import functions
from repro_gate.engine import ReproGateError

RECORDED = "repro-gate recorded"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take `--repro-gate-update`."""
    group = parser.getgroup("repro-gate")
    group.addoption(
        "--repro-gate-update",
        action="store_true",
        help="record the results of reproducible trainings as their baselines",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and the option to every call in a test."""
    config.addinivalue_line(
        "markers",
        "reproducible(command, max_steps=..., ...): train twice and compare with the baseline, as "
        "repro_gate.assert_reproducible does with these arguments, then run the test",
    )
    functions.UPDATE[0] = bool(config.getoption("--repro-gate-update"))


def pytest_unconfigure() -> None:
    """A later session of this process has its own option."""
    functions.UPDATE[0] = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Assert what the marker says, before the test runs."""
    marker = item.get_closest_marker("reproducible")
    if marker is not None:
        _asserted(marker.args, {"folder": item.config.rootpath, **marker.kwargs})


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Report what the test has recorded, whether it passed or not."""
    item.user_properties += [(RECORDED, name) for name in functions.taken_records()]


def _asserted(words: tuple[Any, ...], arguments: dict[str, Any]) -> None:
    """Fail with the summary alone: the lines of this plug-in explain nothing."""
    try:
        functions.assert_reproducible(*words, **arguments)
    except (functions.NotReproducibleError, ReproGateError) as raised:
        said = str(raised)
    else:
        return
    pytest.fail(said, pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the recorded files: they judge nothing before they are committed."""
    recorded = sorted(set(_recorded(terminalreporter)))
    if not recorded:
        return
    terminalreporter.section("repro-gate")
    for name in recorded:
        terminalreporter.line(f"recorded: {name}")
    folders = [name.rpartition("/")[0] for name in recorded]
    # one machine records one entry of a folder: a second name is that of another training
    for folder in sorted({one for one in folders if folders.count(one) > 1}):
        terminalreporter.line(
            f"{folder}: tests with different arguments share it, and the last one replaced what "
            "the others recorded. Give each a gate_id of its own."
        )
    terminalreporter.line("Review and commit these files: the next run is compared with them.")


def _recorded(reporter: pytest.TerminalReporter) -> Iterator[str]:
    for reports in reporter.stats.values():
        for report in reports:
            for entry in getattr(report, "user_properties", ()):
                # other plug-ins add what they like
                match entry:
                    case (name, str(value)) if name == RECORDED:
                        yield value
