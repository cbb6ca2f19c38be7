"""A line of every verdict goes to the history and the metrics that the settings name.

What fails here is a sentence for the log: it changes no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gate.errors import CancelledError, GateError, InternalError
from gate.fleet.lines import call_facts, verdict_line
from gate.fleet.stores import append
from gate.pipelines.adapters import Adapters
from gate.report.wording import sentences
from gate.verdict.history import HistoryLine
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Verdict

MAX_WORDS: Final = 400


def keep_line(
    verdict: Verdict,
    request: GateRequest,
    adapters: Adapters,
    *,
    sealed: bool = False,
    cancelled: bool = False,
) -> tuple[str, ...]:
    """Append the verdict's line and push its metrics; what became of each, in a sentence."""
    wanted = request.settings.publish
    if wanted.history is None and wanted.pushgateway is None:
        return ()
    # T2: credentials go where the base commit's settings say, and no fork's job has any
    if request.from_fork or (request.pull_request and request.settings_from == "head"):
        return ("No line in the history: this pull request decides where it would go.",)
    try:
        call = call_facts(
            adapters.host,
            gate_id=request.gate_id,
            repository=request.repository,
            sealed=sealed,
            cancelled=cancelled,
        )
        line = verdict_line(verdict, call)
    except Exception as raised:  # noqa: BLE001 - the verdict stands, whatever this is
        return (_sentence("No line in the history", raised),)
    return tuple(_kept(line, request, adapters))


def _kept(line: HistoryLine, request: GateRequest, adapters: Adapters) -> Iterator[str]:
    wanted, publishers = request.settings.publish, adapters.publishers
    if wanted.history is not None:
        place = wanted.history
        yield _tried(
            lambda: append(publishers.history(place), line),
            f"A line was added to the history in {place}.",
            f"No line was added to the history in {place}",
        )
    if wanted.pushgateway is not None:
        url = wanted.pushgateway
        yield _tried(
            lambda: publishers.push(url, line),
            f"The metrics were pushed to {url}.",
            f"No metrics were pushed to {url}",
        )


def _tried(act: Callable[[], object], done: str, failed: str) -> str:
    try:
        act()
    except CancelledError:
        raise
    except Exception as raised:  # noqa: BLE001 - as above
        return _sentence(failed, raised)
    return done


def _sentence(what: str, raised: Exception) -> str:
    fault = raised if isinstance(raised, GateError) else InternalError(raised)
    return sentences(f"{what}: {fault.message[:MAX_WORDS]}", fault.hint)
