"""`repro-gate slo`: measure service levels over a history, once or served to Prometheus."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.commands.history_options import Cache, Place, Since, days_of, fleet_call, history_place
from gate.commands.options import Config, console
from gate.commands.program import FILES, INTERRUPTS
from gate.commands.registry_names import clone_settings
from gate.errors import CancelledError, EvidenceError, GateError, SettingsError
from gate.fleet.exposition import CONTENT_TYPE, samples_of_report, text_of
from gate.fleet.indicators import GroupBy, SloReport
from gate.fleet.reading import DAY_SECONDS
from gate.pipelines.fleet import measured
from gate.report.page.slo_page import slo_page
from gate.report.slo_views import slo_markdown, slo_view
from gate.settings.slo import SloSettings
from gate.text.documents import write_document
from gate.text.phrases import count
from gate.text.untrusted_text import safe_line

PATH: Final = "/metrics"
LEAST_REFRESH_SECONDS: Final = 5.0
SOCKET_SECONDS: Final = 10.0


class Format(StrEnum):
    """The formats in which the service levels can be printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"
    OPENMETRICS = "openmetrics"


def slo_command(  # noqa: PLR0913 - each parameter is an option of the command
    place: Place = "",
    *,
    since: Since = "",
    by: Annotated[
        str, typer.Option(help="Count separately by any of gate, author, runner, environment.")
    ] = "gate",
    format_: Annotated[Format, typer.Option("--format", help="What is printed.")] = Format.TEXT,
    config: Config = "",
    cache: Cache = None,
    textfile: Annotated[
        Path | None, typer.Option(help="Write the metrics to this .prom file for a node exporter.")
    ] = None,
    serve: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve /metrics for Prometheus, until stopped.")
    ] = "",
    refresh: Annotated[
        float, typer.Option(min=LEAST_REFRESH_SECONDS, help="Seconds that a served answer is kept.")
    ] = 60.0,
) -> None:
    """Measure service levels over a history.

    M1 to M10 each have a share, a target, an error budget and a burn rate. Targets come from `slo`
    in repro-gate.yml; docs/fleet.md says what each indicator counts. Exit code 0 whether they are
    met or not, 3 when there is no verdict to count.

    Example: repro-gate slo --history /srv/repro-gate/history --since 28d --by gate,runner
    """
    settings, _ = clone_settings(config)
    slo = settings.slo if settings is not None else SloSettings()
    days = days_of(since) if since else float(slo.window_days)
    apart = groups_of(by)
    where = history_place(place, config)

    def report() -> SloReport:
        return measured(fleet_call(where, days, cache), slo, apart)

    if serve:
        serve_metrics(serve, lambda: _metrics(report()), refresh)
        return
    slo_report = report()
    if not slo_report.lines and not slo_report.gates:
        raise EvidenceError(
            f"there is no verdict in {safe_line(where)} since {slo_report.since[:10]}",
            hint="Check --history and --since; name the gates that must report in slo.gates.",
            details=tuple(
                f"{count(n, 'line')} left out: {why}" for why, n in slo_report.left_out.items()
            ),
        )
    if textfile is not None:
        # `write_bytes` replaces the file in one step: a node exporter never reads half of it
        FILES.write_bytes(textfile, _metrics(slo_report).encode("utf-8"))
    _print(slo_report, format_)


def groups_of(by: str) -> tuple[GroupBy, ...]:
    """Return the groupings that `--by` names; raises `SettingsError` for an unknown word."""
    known = {group.value: group for group in GroupBy}
    words = [word.strip() for word in by.split(",")]
    wrong = next((word for word in words if word not in known), None)
    if wrong is not None:
        raise SettingsError(
            f"--by cannot group by {safe_line(wrong)!r}",
            hint=f"Give any of {', '.join(known)}, with commas between them.",
        )
    return tuple(known[word] for word in words)


def _metrics(report: SloReport) -> str:
    return text_of(samples_of_report(report, report.window_days * DAY_SECONDS))


def _print(report: SloReport, format_: Format) -> None:
    if format_ is Format.TEXT:
        console().print(slo_view(report), crop=False)
        return
    texts: dict[Format, Callable[[], str]] = {
        Format.JSON: lambda: write_document(report).decode("utf-8"),
        Format.MARKDOWN: lambda: slo_markdown(report),
        Format.HTML: lambda: slo_page(report),
        Format.OPENMETRICS: lambda: _metrics(report),
    }
    sys.stdout.write(texts[format_]())


def serve_metrics(address: str, text: Callable[[], str], refresh_seconds: float) -> None:
    """Answer GET /metrics on `address`, such as 127.0.0.1:9464, until a signal stops the process.

    Answers one request at a time: counting the history forks this process, and forking is only
    safe without other threads. A history that cannot be read gives status 503, so that Prometheus
    shows `up == 0`. Raises `SettingsError` for an address that cannot be used.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 - the last port
        raise SettingsError(
            f"--serve {safe_line(address)!r} is not an address", hint="For example 127.0.0.1:9464."
        )
    try:
        server = _Server((host.strip("[]"), int(port)), _handler(_Kept(text, refresh_seconds)))
    except OSError as error:
        raise SettingsError(
            f"{safe_line(address)} cannot be listened on: {error.strerror}",
            hint="Choose another port, or end what uses this one.",
        ) from error
    with server:
        sys.stderr.write(f"serving http://{host}:{server.server_port}{PATH}\n")
        # A signal is the normal way to end a server, so the exit code is that of a finished call.
        with suppress(CancelledError):
            server.serve_forever()


class _Server(HTTPServer):
    """An HTTP server that a signal also ends while it answers a request.

    The library catches every exception of a request, the cancellation included. The two methods let
    it through again.
    """

    def service_actions(self) -> None:
        """Raise a cancellation that the library swallowed; it calls this between two requests."""
        with INTERRUPTS.allowed():
            pass

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that disconnects, and a cancellation; raise everything else.

        `service_actions` raises the cancellation again.
        """
        del request, client_address
        if not isinstance(sys.exception(), OSError | CancelledError):
            raise  # noqa: PLE0704 - the library calls this where it handles an exception


class _Kept:
    """The last answer to a scrape, which is recomputed once it is older than `seconds`."""

    def __init__(self, text: Callable[[], str], seconds: float) -> None:
        self._text, self._seconds = text, seconds
        self._made_at, self._answer = 0.0, (0, "")

    def answer(self) -> tuple[int, str]:
        """Return HTTP status and text; a history that cannot be read is cached as a 503 too."""
        if not self._answer[0] or time.monotonic() - self._made_at > self._seconds:
            try:
                self._answer = (200, self._text())
            except GateError as fault:
                sys.stderr.write(f"error: {safe_line(fault.message)}\n")
                self._answer = (503, f"# {safe_line(fault.message)}\n")
            self._made_at = time.monotonic()
        return self._answer


def _handler(kept: _Kept) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """GET /metrics, and nothing else."""

        # requests are answered one by one: a silent client delays all others for at most this long
        timeout = SOCKET_SECONDS
        server_version = "repro-gate"
        sys_version = ""

        def do_GET(self) -> None:
            """Answer a scrape."""
            is_metrics = self.path.partition("?")[0] == PATH
            status, text = kept.answer() if is_metrics else (404, f"# only {PATH}\n")
            body = text.encode("utf-8")
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE if status == 200 else "text/plain")  # noqa: PLR2004 - HTTP's OK
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Log nothing: a line for every scrape would be noise."""

    return Handler
