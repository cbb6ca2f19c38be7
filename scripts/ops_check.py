"""Run `ops/` on real programs: Prometheus, Pushgateway, Alertmanager and a webhook, on loopback.

`make ops` installs them on Debian and starts this. One row for each check; exit code 1 where one
fails. Grafana is not run: its dashboards are held against the types of `@grafana/schema`, where npm
can bring that, and every expression of them is run on the Prometheus started here.
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
from gate.verdict.history import HistoryLine
from gate.verdict.verdict import FailureMode, Outcome

ROOT: Final = Path(__file__).resolve().parents[1]
GATE: Final = Path(sys.executable).with_name("repro-gate")
PROGRAMS: Final = (
    "prometheus", "promtool", "prometheus-pushgateway", "prometheus-alertmanager", "amtool",
)  # fmt: skip
HOST: Final = "127.0.0.1"
WAIT_SECONDS: Final = 90.0
# more than ten evaluations, in which a second page would have come
QUIET_SECONDS: Final = 25.0
INTERVAL: Final = "2s"
BURNING: Final = "digits"
VERDICTS: Final = 60


def say(line: str) -> None:
    """A line at once: a check may take a minute."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Checks:
    """Rows of a table, printed as they come."""

    def __init__(self) -> None:
        self.failed = 0

    def row(self, what: str, *, holds: bool, told: str = "") -> None:
        """One check."""
        self.failed += not holds
        say(f"{'ok  ' if holds else 'FAIL'}  {what}")
        if not holds and told:
            say(f"      {told.strip()[-2000:]}")

    def program(self, what: str, *words: str | Path, folder: Path = ROOT) -> None:
        """A program that must end with 0."""
        done = run(*words, folder=folder)
        self.row(what, holds=done.returncode == 0, told=done.stdout + done.stderr)


def run(*words: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A program to its end."""
    shown = [str(word) for word in words]
    return subprocess.run(shown, cwd=folder, capture_output=True, text=True, check=False)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


@contextmanager
def server(folder: Path, ready: str, *words: str | Path) -> Iterator[None]:
    """A program that answers at the address `ready`, until the end of the block."""
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
    """Whether a server is ready there."""
    try:
        return bool(requests.get(address, timeout=5).ok)
    except requests.RequestException:
        return False


def until(true: Callable[[], bool], seconds: float = WAIT_SECONDS) -> bool:
    """Whether it becomes true in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.3)
    return False


@contextmanager
def webhook() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Where pages and tickets arrive: its port, and what has come so far, with its path."""
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
    """A line of a history that has every fact that a dashboard shows."""
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
    """Two gates of two weeks, all of them reproduced; one commit was judged twice."""
    lines = [verdict(number, timedelta(hours=5 * number + 2)) for number in range(1, VERDICTS)]
    lines += [verdict(1, timedelta(hours=3)), verdict(2, timedelta(hours=3), gate_id="quiet")]
    return sorted(lines, key=lambda line: line.judged_at)


def burn() -> list[HistoryLine]:
    """Three runs of the last half hour differ: two of them spend a quarter of the budget."""
    facts = {
        "outcome": Outcome.NONDETERMINISTIC,
        "passes": False,
        "sealed": False,
        "digests_equal": False,
        "failure_mode": FailureMode.RANDOM,
    }
    return [verdict(900 + one, timedelta(minutes=20 - one), **facts) for one in range(3)]


class Prometheus:
    """A started server."""

    def __init__(self, port: int) -> None:
        self.address = f"http://{HOST}:{port}"

    def get(self, path: str, **parameters: str) -> Mapping[str, Any]:
        """What its API answers."""
        answer = requests.get(f"{self.address}/api/v1/{path}", params=parameters, timeout=30)
        found: Mapping[str, Any] = answer.json()
        return found

    def values(self, expr: str) -> list[Any]:
        """The series of an expression now; raises `ValueError` with what Prometheus says of it."""
        answer = self.get("query", query=expr)
        if answer["status"] != "success":
            raise ValueError(answer["error"])
        result = answer["data"]["result"]
        return result if isinstance(result, list) else [result]


def check_files(checks: Checks) -> None:
    """Each file by the program that reads it."""
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
    """Every expression of every dashboard, with all gates chosen."""
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
    """The dashboards as values of Grafana's own types; left out where npm cannot bring those."""
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
    (folder / "broken.ts").write_text(typed({**next(boards()), "refresh": 60}))
    broken = run("npx", "tsc", *words, "broken.ts", folder=folder)
    checks.row("tsc refuses a dashboard with a number where a text belongs",
               holds=broken.returncode != 0)  # fmt: skip


def typed(board: Mapping[str, Any]) -> str:
    """The dashboard as a value of the published type, whose enumerations JSON writes as texts."""
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
    """The three programs together: a burn of one gate makes one page."""
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
    """Rules are loaded, and both ways of metrics arrive."""
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
    """Runs burn the budget of a gate, each pushed and in the history: one page, and no second."""

    def pages() -> list[dict[str, Any]]:
        return [one for one in came if one["path"] == "/page"]

    first, second, third = burn()
    for line in (first, second):
        append(history, line)
        push(pushgateway, line)
    began = time.monotonic()
    # the alert has to hold for a minute first
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
    """All checks, or what is missing."""
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
