"""The pytest plug-in: the marker `reproducible` and the option `--repro-gate-update`.

pytest loads it in every project that has repro-gate installed, in any version of pytest. So it uses
only plain hooks, which every version knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from repro_gate import functions
from repro_gate.engine import ReproGateError

RECORDED = "repro-gate recorded"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--repro-gate-update`."""
    group = parser.getgroup("repro-gate")
    group.addoption(
        "--repro-gate-update",
        action="store_true",
        help="record the results of reproducible trainings as their baselines",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and pass the option to every `assert_reproducible` call in a test."""
    config.addinivalue_line(
        "markers",
        "reproducible(command, max_steps=..., ...): train twice and compare with the baseline, as "
        "repro_gate.assert_reproducible does with these arguments, then run the test",
    )
    functions.UPDATE[0] = bool(config.getoption("--repro-gate-update"))


def pytest_unconfigure() -> None:
    """Reset the option: a later pytest session in this process sets its own."""
    functions.UPDATE[0] = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Train and compare as the test's marker asks, before the test's body runs."""
    marker = item.get_closest_marker("reproducible")
    if marker is not None:
        _asserted(marker.args, {"folder": item.config.rootpath, **marker.kwargs})


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Attach the baseline files that the test recorded to its report, also if the test failed.

    `user_properties` is what pytest-xdist sends from its workers to the main process.
    """
    item.user_properties += [(RECORDED, name) for name in functions.taken_records()]


def _asserted(words: tuple[Any, ...], arguments: dict[str, Any]) -> None:
    """Call `assert_reproducible`, and fail the test with the summary alone.

    A traceback would show lines of this plug-in, which explain nothing to the user.
    """
    try:
        functions.assert_reproducible(*words, **arguments)
    except (functions.NotReproducibleError, ReproGateError) as raised:
        said = str(raised)
    else:
        return
    pytest.fail(said, pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the recorded files and ask to commit them: uncommitted baselines are not used."""
    recorded = sorted(set(_recorded(terminalreporter)))
    if not recorded:
        return
    terminalreporter.section("repro-gate")
    for name in recorded:
        terminalreporter.line(f"recorded: {name}")
    folders = [name.rpartition("/")[0] for name in recorded]
    # One machine records one entry per baseline folder. Two files in a folder therefore mean that
    # two different trainings share it.
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
                # other plug-ins put values of any shape here
                match entry:
                    case (name, str(value)) if name == RECORDED:
                        yield value
