"""Check `ops/` with real programs on loopback: Prometheus, Pushgateway, Alertmanager, a webhook.

`make ops` installs the programs on Debian and runs this script. It prints one row per check and
ends with exit code 1 if a check fails. Grafana is not started. Instead, the dashboards are
type-checked against `@grafana/schema` if npm can install it, and each of their expressions is run
on the Prometheus started here.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import ops_kit
import requests
from ops_boards import boards, expressions

from gate.fleet import metric_names as names
from gate.fleet.exposition import push
from gate.fleet.stores import FolderStore, append
from gate.system.files.files import LocalFiles
from gate.verdict.history_lines import HistoryLine
from gate.verdict.verdict import FailureMode, Outcome

ROOT: Final = Path(__file__).resolve().parents[1]
GATE: Final = Path(sys.executable).with_name("repro-gate")
PROGRAMS: Final = (
    "prometheus", "promtool", "prometheus-pushgateway", "prometheus-alertmanager", "amtool",
)  # fmt: skip
HOST: Final = "127.0.0.1"
WAIT_SECONDS: Final = 90.0
# more than ten evaluations of the rules: a second page would have arrived by then
QUIET_SECONDS: Final = 25.0
INTERVAL: Final = "2s"
BURNING: Final = "digits"
VERDICTS: Final = 60


def say(line: str) -> None:
    """Print a line and flush it, because a check may take a minute."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Checks:
    """Prints one row per check as it ends, and counts those that failed."""

    def __init__(self) -> None:
        self.failed = 0

    def row(self, what: str, *, holds: bool, told: str = "") -> None:
        """Print the row of a check; `told` is printed below it if the check failed."""
        self.failed += not holds
        say(f"{'ok  ' if holds else 'FAIL'}  {what}")
        if not holds and told:
            say(f"      {told.strip()[-2000:]}")

    def program(self, what: str, *words: str | Path, folder: Path = ROOT) -> None:
        """Run a program; the check holds if it ends with exit code 0."""
        done = run(*words, folder=folder)
        self.row(what, holds=done.returncode == 0, told=done.stdout + done.stderr)


def run(*words: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with its output captured; any exit code is accepted."""
    shown = [str(word) for word in words]
    return subprocess.run(shown, cwd=folder, capture_output=True, text=True, check=False)


def free_port() -> int:
    """Return a free port on loopback; another process may take it before it is used."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


@contextmanager
def server(folder: Path, ready: str, *words: str | Path) -> Iterator[None]:
    """Run a program for the length of the block; `ready` is the address that answers once it is up.

    Raises `SystemExit` with the end of its log if it does not start.
    """
    log = folder / f"{Path(words[0]).name}.log"
    with log.open("wb") as file:
        started = subprocess.Popen([str(word) for word in words], stdout=file, stderr=file)
    try:
        if not until(lambda: answers(ready) or started.poll() is not None) or started.poll():
            raise SystemExit(f"{words[0]} did not start:\n{log.read_text()[-3000:]}")
        yield
    finally:
        started.terminate()
        started.wait(30)


def answers(address: str) -> bool:
    """Decide whether a server answers at the address with a success."""
    try:
        return bool(requests.get(address, timeout=5).ok)
    except requests.RequestException:
        return False


def until(true: Callable[[], bool], seconds: float = WAIT_SECONDS) -> bool:
    """Poll a condition; return whether it became true within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.3)
    return False


@contextmanager
def webhook() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Run a webhook for pages and tickets; yield its port and the list of notifications received.

    Each notification is Alertmanager's JSON with the request's `path`, `/page` or `/ticket`.
    """
    came: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", "0"))
            came.append({"path": self.path, **json.loads(self.rfile.read(size))})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield listening.server_port, came
    finally:
        listening.shutdown()


def verdict(number: int, ago: timedelta, **facts: object) -> HistoryLine:
    """Return a history line, judged `ago` before now, with every fact that a dashboard shows."""
    given: dict[str, Any] = {
        "outcome": Outcome.REPRODUCED,
        "passes": True,
        "sealed": True,
        "digests_equal": True,
        "gate_id": BURNING,
    }
    return HistoryLine(
        judged_at=(datetime.now(UTC) - ago).isoformat(timespec="seconds"),
        run_id=str(4000 + number),
        repository="org/models",
        commit=f"{number:040x}",
        author="mei",
        runner="gpu-7",
        environment="0123456789abcdef",
        metric="loss",
        last="0.5",
        spread=0.0,
        uncovered_operators=0,
        data_verified=True,
        step_seconds=0.5,
        training_seconds=40.0,
        seconds=60.0,
        cost_ratio=1.04,
        **{**given, **facts},
    )


def good_history() -> list[HistoryLine]:
    """Return the lines of two gates over two weeks, all reproduced.

    One commit was judged twice, because an indicator counts commits with repeated verdicts.
    """
    lines = [verdict(number, timedelta(hours=5 * number + 2)) for number in range(1, VERDICTS)]
    lines += [verdict(1, timedelta(hours=3)), verdict(2, timedelta(hours=3), gate_id="quiet")]
    return sorted(lines, key=lambda line: line.judged_at)


def burn() -> list[HistoryLine]:
    """Return three nondeterministic verdicts of the last half hour.

    Two of them are enough to spend a quarter of the error budget, which is what pages.
    """
    facts = {
        "outcome": Outcome.NONDETERMINISTIC,
        "passes": False,
        "sealed": False,
        "digests_equal": False,
        "failure_mode": FailureMode.RANDOM,
    }
    return [verdict(900 + one, timedelta(minutes=20 - one), **facts) for one in range(3)]


class Prometheus:
    """A client of the Prometheus that this script started."""

    def __init__(self, port: int) -> None:
        self.address = f"http://{HOST}:{port}"

    def get(self, path: str, **parameters: str) -> Mapping[str, Any]:
        """Return the JSON answer of its HTTP API for `path`."""
        answer = requests.get(f"{self.address}/api/v1/{path}", params=parameters, timeout=30)
        found: Mapping[str, Any] = answer.json()
        return found

    def values(self, expr: str) -> list[Any]:
        """Return the series that an expression has now.

        Raises `ValueError` with the message of Prometheus for an expression that it refuses.
        """
        answer = self.get("query", query=expr)
        if answer["status"] != "success":
            raise ValueError(answer["error"])
        result = answer["data"]["result"]
        return result if isinstance(result, list) else [result]


def check_files(checks: Checks) -> None:
    """Check each file of `ops/` with the program that reads it."""
    old = ops_kit.stale()
    checks.row("ops/ is what scripts/ops_kit.py writes", holds=not old, told=", ".join(old))
    folder = ops_kit.OPS / "prometheus"
    checks.program("promtool check config", "promtool", "check", "config", "prometheus.yml",
                   folder=folder)  # fmt: skip
    checks.program("promtool check rules", "promtool", "check", "rules", folder / "rules.yml")
    cases = len(ops_kit.rule_tests()["tests"])
    checks.program(
        f"promtool test rules: {cases} cases of {len(ops_kit.ALERTS)} alerts",
        "promtool", "test", "rules", folder / "rules.test.yml",
    )  # fmt: skip
    routes = ops_kit.OPS / "alertmanager" / "alertmanager.yml"
    checks.program("amtool check-config", "amtool", "check-config", routes)
    for alert in ops_kit.ALERTS:
        receiver = "pager" if alert.severity == ops_kit.PAGE else "tickets"
        labels = {"alertname": alert.name, "severity": alert.severity, **alert.labels}
        words = [f"{name}={value}" for name, value in labels.items()]
        checks.program(
            f"amtool config routes test: {alert.name} goes to {receiver}",
            "amtool", "config", "routes", "test", "--config.file", routes,
            "--verify.receivers", receiver, *words,
        )  # fmt: skip


def check_boards(checks: Checks, prometheus: Prometheus) -> None:
    """Run every expression of every dashboard, with all gates selected; each must have a series."""
    for board in boards():
        asked = list(expressions(board))
        faults = []
        for expr in asked:
            plain = expr.replace("$repository", ".*").replace("$gate_id", ".*")
            try:
                found = prometheus.values(plain)
            except ValueError as error:
                faults.append(f"{plain}: {error}")
                continue
            if not found:
                faults.append(f"{plain}: no series")
        what = f"{board['uid']}: {len(asked)} expressions run, and each has a series"
        checks.row(what, holds=not faults, told="\n".join(faults))


def check_form(checks: Checks, folder: Path) -> None:
    """Type-check the dashboards against Grafana's own types; skipped if npm cannot install them."""
    packages = ("@grafana/schema@13.2.3", "typescript@5.9.3")
    brought = run("npm", "install", "--silent", "--no-audit", "--no-fund", *packages, folder=folder)
    if brought.returncode:
        say("left out  @grafana/schema cannot be had here: the form of the dashboards")
        return
    for board in boards():
        name = board["uid"]
        (folder / f"{name}.ts").write_text(typed(board))
        words = ("--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler",
                 "--module", "esnext", "--target", "esnext")  # fmt: skip
        checks.program(f"{name}: tsc takes it as a Dashboard of @grafana/schema 13.2.3",
                       "npx", "tsc", *words, f"{name}.ts", folder=folder)  # fmt: skip
    # a broken dashboard has to fail, or the checks above prove nothing
    (folder / "broken.ts").write_text(typed({**next(boards()), "refresh": 60}))
    broken = run("npx", "tsc", *words, "broken.ts", folder=folder)
    checks.row("tsc refuses a dashboard with a number where a text belongs",
               holds=broken.returncode != 0)  # fmt: skip


def typed(board: Mapping[str, Any]) -> str:
    """Return TypeScript that assigns the dashboard to the published type.

    The type `Json` replaces enumerations by their texts, because that is how JSON writes them.
    """
    return f"""import type {{ AnnotationQuery, Dashboard, DataQuery, Panel }}
  from '@grafana/schema';
type Json<T> = T extends string ? `${{T}}` : T extends number ? number
  : T extends (infer U)[] ? Json<U>[] : T extends object ? {{ [K in keyof T]: Json<T[K]> }} : T;
type Query = DataQuery & {{ expr: string }};
type Note = Omit<Json<AnnotationQuery>, 'target'> & {{ target: Query }};
type Written = Omit<Json<Dashboard>, 'panels' | 'annotations'>
  & {{ panels: Json<Panel>[]; annotations: {{ list: Note[] }} }};
export const board: Written = {json.dumps(board, indent=1)};
"""


def check_service(checks: Checks, folder: Path, stack: ExitStack) -> None:
    """Run the three programs together: one gate that burns its budget must cause one page."""
    ports = {name: free_port() for name in ("prometheus", "pushgateway", "alertmanager", "history")}
    at = {name: f"{HOST}:{port}" for name, port in ports.items()}
    hook, came = stack.enter_context(webhook())
    shutil.copy(ops_kit.OPS / "prometheus" / "rules.yml", folder)
    config = ops_kit.prometheus(interval=INTERVAL, **at)
    routes = ops_kit.alertmanager(
        pager=f"http://{HOST}:{hook}/page", tickets=f"http://{HOST}:{hook}/ticket", wait="2s"
    )
    (folder / "prometheus.yml").write_text(ops_kit.as_yaml(config))
    (folder / "alertmanager.yml").write_text(ops_kit.as_yaml(routes))
    lines = good_history()
    history = FolderStore(folder / "history", LocalFiles())
    for line in lines:
        append(history, line)
    stack.enter_context(
        server(folder, f"http://{at['history']}/metrics", GATE, "slo", "--history",
               folder / "history", "--serve", at["history"], "--refresh", "5")
    )  # fmt: skip
    stack.enter_context(
        server(folder, f"http://{at['pushgateway']}/-/ready", "prometheus-pushgateway",
               f"--web.listen-address={at['pushgateway']}")
    )  # fmt: skip
    stack.enter_context(
        server(folder, f"http://{at['alertmanager']}/-/ready", "prometheus-alertmanager",
               f"--config.file={folder / 'alertmanager.yml'}",
               f"--storage.path={folder / 'alerts'}",
               f"--web.listen-address={at['alertmanager']}", "--cluster.listen-address=")
    )  # fmt: skip
    stack.enter_context(
        server(folder, f"http://{at['prometheus']}/-/ready", "prometheus",
               f"--config.file={folder / 'prometheus.yml'}",
               f"--storage.tsdb.path={folder / 'series'}",
               f"--web.listen-address={at['prometheus']}")
    )  # fmt: skip
    prometheus = Prometheus(ports["prometheus"])
    check_scraped(checks, prometheus, f"http://{at['pushgateway']}", lines[-1])
    check_one_page(checks, prometheus, history, f"http://{at['pushgateway']}", came)
    check_boards(checks, prometheus)


def check_scraped(
    checks: Checks, prometheus: Prometheus, pushgateway: str, line: HistoryLine
) -> None:
    """Check that Prometheus has the rules, and scrapes pushed metrics and a served history."""
    groups = prometheus.get("rules")["data"]["groups"]
    loaded = [rule for group in groups for rule in group["rules"]]
    wanted = len(ops_kit.RECORDED) + len(ops_kit.ALERTS)
    checks.row(f"Prometheus has loaded {wanted} rules", holds=len(loaded) == wanted)
    push(pushgateway, line)
    pushed = f'{names.LAST_INFO.name}{{job="repro-gate"}}'
    checks.row("a pushed verdict is scraped", holds=until(lambda: bool(prometheus.values(pushed))))
    served = f'{names.VALID.name}{{job="repro-gate-history"}}'
    checks.row("a served history is scraped", holds=until(lambda: bool(prometheus.values(served))))
    calm = until(lambda: bool(prometheus.values("repro_gate:sli:fleet_ratio")))
    firing = prometheus.values('ALERTS{alertstate="firing"}')
    checks.row("a good history fires nothing", holds=calm and not firing, told=str(firing))


def check_one_page(
    checks: Checks,
    prometheus: Prometheus,
    history: FolderStore,
    pushgateway: str,
    came: list[dict[str, Any]],
) -> None:
    """Burn the budget of one gate, and check that exactly one page arrives.

    Each verdict is both pushed and in the history, as with a gate that is watched in both ways.
    """

    def pages() -> list[dict[str, Any]]:
        return [one for one in came if one["path"] == "/page"]

    first, second, third = burn()
    for line in (first, second):
        append(history, line)
        push(pushgateway, line)
    began = time.monotonic()
    # the alert fires only after its condition has held for a minute (`hold` in scripts/ops_kit.py)
    arrived = until(lambda: bool(pages()), WAIT_SECONDS + 60)
    checks.row(f"a burn pages after {time.monotonic() - began:.0f} s", holds=arrived,
               told=str(prometheus.values("ALERTS")))  # fmt: skip
    append(history, third)
    push(pushgateway, third)
    time.sleep(QUIET_SECONDS)
    found = pages()
    alerts = [alert for page in found for alert in page["alerts"]]
    told = json.dumps(found, indent=1)
    checks.row("it was exactly one page, whatever burned on", told=told, holds=len(found) == 1)
    named = {(one["labels"]["alertname"], one["labels"]["gate_id"], one["labels"]["indicator"])
             for one in alerts}  # fmt: skip
    wanted = {("ReproGateBudgetBurn", BURNING, indicator) for indicator in ("M1", "M2")}
    checks.row("it names the gate, and M1 and M2 together", holds=named == wanted, told=told)
    link = alerts[0]["annotations"]["runbook_url"] if alerts else ""
    checks.row(f"it links {link}", holds=link.startswith(ops_kit.PAGES))
    tickets = [alert["labels"]["alertname"] for one in came if one["path"] == "/ticket"
               for alert in one["alerts"]]  # fmt: skip
    checks.row("F1 is the author's to fix: no ticket came", holds=not tickets, told=str(tickets))


def main() -> int:
    """Run all checks and return the exit code; if programs are missing, name them and return 1."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        say(f"not here: {', '.join(missing)}; on Debian: apt-get install prometheus "
            "prometheus-pushgateway prometheus-alertmanager")  # fmt: skip
        return 1
    checks = Checks()
    check_files(checks)
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        (folder / "form").mkdir()
        check_form(checks, folder / "form")
        check_service(checks, folder, stack)
    say(f"{checks.failed} failed")
    return int(bool(checks.failed))


if __name__ == "__main__":
    sys.exit(main())
