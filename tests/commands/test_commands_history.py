"""`repro-gate history` and `slo`, and the lines that gates write to a history by themselves."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from command_line import Run, record
from played_training import Project

NO_SECOND = "http://127.0.0.1:9"


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "history"


def lines(history: Path) -> list[dict[str, object]]:
    files = sorted(history.glob("*/*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text()) for path in files]


def test_a_gate_keeps_a_line_of_a_pass_and_of_what_fails(
    project: Project, run: Run, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI_JOB_ID", "4711")
    monkeypatch.setenv("GITLAB_USER_LOGIN", "ann")
    project.settings(f"publish: {{history: '{history}', pushgateway: '{NO_SECOND}'}}\n")
    record(project, run)
    project.commit()
    passed = run("gate")
    # a Pushgateway that is down changes nothing
    assert passed.code == 0
    assert f"A line was added to the history in {history}." in passed.out.replace("\n", " ")
    assert "No metrics were pushed" in passed.out
    (kept,) = lines(history)
    assert (kept["outcome"], kept["passes"], kept["sealed"]) == ("reproduced", True, False)
    assert (kept["run_id"], kept["author"], kept["digests_equal"]) == ("4711", "ann", True)
    assert (kept["spread"], kept["metric"]) == (0.0, "loss")
    assert isinstance(kept["seconds"], float)
    assert len(str(kept["environment"])) == 16
    project.play(exit=3)
    assert run("gate").code == 3
    assert [one["outcome"] for one in lines(history)] == ["reproduced", "error"]
    # whatever the caller says, only a pass is sealed
    assert run("history", "append", "--history", history, "--run-id", "8", "--sealed").code == 0
    assert (lines(history)[-1]["run_id"], lines(history)[-1]["sealed"]) == ("8", False)


def test_prune_counts_and_removes_by_class(project: Project, run: Run, history: Path) -> None:
    record(project, run)
    project.commit()
    assert run("gate", "-q").code == 0
    file = project.path / "repro-gate-out/verdict.json"
    made = json.loads(file.read_text())
    for days, sealed in (
        (0, "--no-sealed"),
        (100, "--no-sealed"),
        (450, "--sealed"),
        (500, "--sealed"),
    ):
        then = datetime.fromisoformat(made["created_at"]) - timedelta(days=days)
        file.write_text(json.dumps(made | {"created_at": then.isoformat()}))
        assert run("history", "append", "--history", history, sealed).code == 0
    counted = run("history", "prune", "--history", history, "--dry-run").out
    assert "2 lines would be removed" in counted
    assert len(lines(history)) == 4
    pruned = run("history", "prune", "--history", history).out
    assert [line.split() for line in pruned.splitlines() if "newest of a gate" in line] == [
        ["the", "newest", "of", "a", "gate", "1", "0"]
    ]
    assert sorted(bool(one["sealed"]) for one in lines(history)) == [False, True]
    refused = run("history", "prune", "--history", history, "--keep-sealed-days", "9")
    assert refused.code == 2
    assert "--keep-sealed-days 9 is below --keep-days 90" in refused.err


def test_a_history_that_cannot_be_written_changes_no_verdict(
    project: Project, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    project.settings(f"publish: {{history: '{tmp_path / 'file'}'}}\n")
    record(project, run)
    project.commit()
    ended = run("gate")
    assert ended.code == 0
    assert "No line was added to the history" in ended.out


def test_append_adds_a_verdict_that_was_made_elsewhere(
    project: Project, run: Run, history: Path, tmp_path: Path
) -> None:
    record(project, run)
    project.commit()
    assert run("gate", "-q").code == 0
    added = run("history", "append", "--history", history, "--repository", "o/n")
    assert added.code == 0
    assert "It has no run id" in added.out
    prom = tmp_path / "gate.prom"
    # the verdict of a later call: lines of one second stand in no certain order
    file = project.path / "repro-gate-out/verdict.json"
    made = json.loads(file.read_text())
    later = datetime.fromisoformat(made["created_at"]) + timedelta(seconds=1)
    file.write_text(json.dumps(made | {"created_at": later.isoformat()}))
    verdict = "repro-gate-out/verdict.json"
    again = run(
        "history", "append", verdict, "--history", history, "--run-id", "7", "--sealed",
        "--textfile", prom, "--pushgateway", NO_SECOND,
    )  # fmt: skip
    assert again.code == 3
    assert "no metrics were pushed: the Pushgateway cannot be reached" in again.err
    assert 'run_id="7"' in prom.read_text()
    assert sorted((one["run_id"], one["sealed"]) for one in lines(history)) == [
        ("", False),
        ("7", True),
    ]
    shown = run("history", "show", "--history", history)
    assert "2 lines in 7d" in shown.out
    rows = run("history", "show", "--history", history, "--json", "--most", "1").out.splitlines()
    (newest,) = rows
    assert json.loads(newest)["run_id"] == "7"
    table = run("history", "report", "--history", history).out
    assert table.startswith("# 2 lines in 7d\n\n| Judged at |")
    # today's files are left alone
    joined = run("history", "compact", "--history", history)
    assert (joined.code, joined.out.startswith("0 files of")) == (0, True)


def test_a_push_that_was_asked_for_and_fails_fails_the_call(
    project: Project, run: Run, history: Path
) -> None:
    record(project, run)
    project.commit()
    assert run("gate", "-q").code == 0
    append = ("history", "append", "--history", history, "--run-id", "7", "--pushgateway")
    wrong = run(*append, "pushgateway:9091")
    assert (wrong.code, history.exists()) == (3, False)
    assert "must be an address without a login" in wrong.err
    ended = run(*append, NO_SECOND)
    assert ended.code == 3
    assert "error: the line was added, and no metrics were pushed: " in ended.err
    assert "Then run the same command again: a line is kept once." in ended.err
    assert run(*append, NO_SECOND).code == 3
    assert len(lines(history)) == 1


def test_levels_of_no_verdict_are_no_answer(run: Run, tmp_path: Path, project: Project) -> None:
    (tmp_path / "empty").mkdir()
    ended = run("slo", "--history", tmp_path / "empty", "--since", "7d")
    assert (ended.code, ended.out) == (3, "")
    assert f"error: there is no verdict in {tmp_path / 'empty'} since 20" in ended.err
    assert "hint: Check --history and --since" in ended.err
    # a gate that must report and does not is an answer
    project.settings("slo: {gates: {nightly: {}}}\n")
    silent = run("slo", "--history", tmp_path / "empty", "--since", "7d")
    assert (silent.code, "nightly" in silent.out) == (0, True)


def test_a_verdict_that_is_none_is_refused(run: Run, tmp_path: Path, history: Path) -> None:
    (tmp_path / "verdict.json").write_text('{"schema_version": "x"}')
    ended = run("history", "append", tmp_path, "--history", history)
    assert ended.code == 3
    assert "schema version 'x'" in ended.err
    assert not history.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("history", "show"), "no history is named"),
        (("history", "show", "--history", "gone"), "there is no history in gone"),
        (("slo", "--history", "gone"), "there is no history in gone"),
        (("slo", "--history", ".", "--since", "7y"), "--since '7y' is not a time"),
        (("slo", "--history", ".", "--by", "gate,team"), "--by cannot group by 'team'"),
        (("slo", "--history", ".", "--serve", "9464"), "--serve '9464' is not an address"),
    ],
)
def test_what_cannot_be_read_is_one_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(*words)
    assert ended.code in {2, 3}
    assert message in ended.err


def test_slo_prints_text_json_markdown_a_page_and_metrics(
    project: Project, run: Run, history: Path, tmp_path: Path
) -> None:
    slo = "slo: {window_days: 14, targets: {M9: 0.5}, gates: {nightly: {}}}\n"
    project.settings(f"publish: {{history: '{history}'}}\n{slo}")
    record(project, run)
    project.commit()
    assert run("gate", "-q").code == 0
    text = run("slo").out
    assert "M9 sealed passes" in text
    assert "1 target missed" in text
    assert "1 gate silent" in text
    found = json.loads(run("slo", "--format", "json", "--since", "1d").out)
    level = found["groups"][0]["levels"][8]
    assert (level["indicator"], level["good"], level["valid"], level["target"]) == ("M9", 0, 1, 0.5)
    assert run("slo", "--format", "markdown", "--by", "runner").out.startswith("# 1 line · 14 d")
    page = run("slo", "--format", "html").out
    assert "<polyline" in page
    assert "<script" not in page
    prom = tmp_path / "fleet.prom"
    printed = run("slo", "--format", "openmetrics", "--textfile", prom).out
    assert 'repro_gate_slo_target_ratio{repository="",gate_id="default",indicator="M9"} 0.5' in (
        printed
    )
    assert printed.splitlines()[:3] == prom.read_text().splitlines()[:3]


def _serving(folder: Path) -> subprocess.Popen[str]:
    (folder / "history").mkdir()
    return subprocess.Popen(
        (sys.executable, "-m", "gate", "slo", "--history", "history", "--serve", "127.0.0.1:0"),
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_signal_in_the_middle_of_a_request_ends_the_server(tmp_path: Path) -> None:
    server = _serving(tmp_path)
    assert server.stderr is not None
    address = urlsplit(server.stderr.readline().removeprefix("serving ").strip())
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(b"GET /metrics")
        # as long as it takes to begin with the request, whose line never ends
        time.sleep(0.5)
        server.send_signal(signal.SIGTERM)
        _, told = server.communicate(timeout=120)
    assert (server.returncode, told) == (0, "")


def test_serve_answers_a_scrape(tmp_path: Path) -> None:
    server = _serving(tmp_path)
    assert server.stderr is not None
    try:
        url = server.stderr.readline().removeprefix("serving ").strip()
        answer = requests.get(url, timeout=60)
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")
        assert requests.get(url.replace("metrics", "else"), timeout=60).status_code == 404
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=120)
        server.stderr.close()
