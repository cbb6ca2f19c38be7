"""A sealed pass becomes a run on an MLflow server: all its numbers, and no credential told."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from github_client import AT_ONCE
from hypothesis import given
from hypothesis import strategies as st
from mlflow_double import MlflowDouble
from sealed_files import COMMIT, sealed_artifact
from web_double import Fault, Handler, status

from gate.errors import GateError, PublishError
from gate.publishing.artifact import Tracked, TrackedMetric, TrackedRun
from gate.publishing.mlflow import MlflowTracker
from gate.publishing.tracked import MAX_NAME, server_names
from gate.settings.delivery_sections import MlflowSettings
from gate.system.files.files import LocalFiles

SECRET = "hush-hush"
TOKEN = {"MLFLOW_TRACKING_TOKEN": SECRET}
PAIR = {"MLFLOW_TRACKING_USERNAME": "robot", "MLFLOW_TRACKING_PASSWORD": SECRET}


@pytest.fixture
def server() -> Iterator[MlflowDouble]:
    with MlflowDouble() as double:
        yield double


def run_of(folder: Path, **changes: object) -> TrackedRun:
    artifact = sealed_artifact(folder)
    run = TrackedRun(
        name="c0ffee reproduced",
        commit=COMMIT,
        milliseconds=1_763_888_400_000,
        parameters={"train.seed": "42"},
        metrics=(TrackedMetric(name="loss", step=1, value=0.1 + 0.2),),
        tags={"repro-gate.commit": COMMIT},
        files=(artifact.package, *artifact.seals),
        passes=True,
    )
    return replace(run, **changes)  # type: ignore[arg-type] # by name


def tracked(
    server: MlflowDouble,
    run: TrackedRun,
    variables: Mapping[str, str] | None = None,
    model: str | None = None,
) -> Tracked:
    settings = MlflowSettings(uri=server.url, experiment="smoke", registered_model=model)
    return MlflowTracker(settings, variables or {}, LocalFiles(), AT_ONCE).track(run)


def refused(act: Callable[[], object]) -> GateError:
    with pytest.raises(GateError) as caught:
        act()
    assert SECRET not in str(caught.value)
    return caught.value


def test_a_run_holds_all_of_a_pass(server: MlflowDouble, tmp_path: Path) -> None:
    found = tracked(server, run_of(tmp_path))
    assert found == Tracked(run_id="run1")
    run = server.runs["run1"]
    assert (run["experiment_id"], run["run_name"]) == ("1", "c0ffee reproduced")
    assert run["params"] == {"train.seed": "42"}
    assert run["tags"] == {"repro-gate.commit": COMMIT}
    (metric,) = run["metrics"]
    assert metric == {"key": "loss", "value": 0.1 + 0.2, "timestamp": 1_763_888_400_000, "step": 1}
    assert run["status"] == "FINISHED"
    assert server.artifacts == {
        f"1/run1/artifacts/{path.name}": path.read_bytes() for path in tmp_path.iterdir()
    }


def test_an_experiment_that_is_there_is_used(server: MlflowDouble, tmp_path: Path) -> None:
    server.experiments = {"other": "1", "smoke": "7"}
    tracked(server, run_of(tmp_path))
    assert server.runs["run1"]["experiment_id"] == "7"


def test_each_call_is_a_run_and_that_is_told(server: MlflowDouble, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    told = [tracked(server, run).notes for _ in range(3)]
    assert told == [
        (),
        ("The MLflow experiment has 1 run of this commit from earlier calls.",),
        ("The MLflow experiment has 2 runs of this commit from earlier calls.",),
    ]


def test_much_is_sent_in_parts(server: MlflowDouble, tmp_path: Path) -> None:
    metrics = tuple(TrackedMetric(name="loss", step=step, value=1 / 3) for step in range(2500))
    parameters = {f"key-{number}": "x" for number in range(250)}
    tracked(server, run_of(tmp_path, metrics=metrics, parameters=parameters))
    sizes = [
        len(body.get("metrics") or body["params"])
        for path, body in server.requests
        if path == "runs/log-batch"
    ]
    assert sizes == [100, 100, 50, 1000, 1000, 500]
    assert [one["step"] for one in server.runs["run1"]["metrics"]] == list(range(2500))


def test_what_is_too_long_is_cut(server: MlflowDouble, tmp_path: Path) -> None:
    changes = {"parameters": {"train.command": "x" * 9000}, "tags": {"long": "y" * 9000}}
    tracked(server, run_of(tmp_path, **changes))
    run = server.runs["run1"]
    assert run["params"]["train.command"] == "x" * 499 + "…"
    assert run["tags"]["long"] == "y" * 4999 + "…"


def test_numbers_that_are_not_finite_are_words(server: MlflowDouble, tmp_path: Path) -> None:
    values = (math.nan, math.inf, -math.inf, -0.0, 5e-324)
    metrics = tuple(
        TrackedMetric(name="loss", step=step, value=value) for step, value in enumerate(values)
    )
    tracked(server, run_of(tmp_path, metrics=metrics))
    sent = [one["value"] for one in server.runs["run1"]["metrics"]]
    assert sent[:3] == ["NaN", "Infinity", "-Infinity"]
    assert [value.hex() for value in sent[3:]] == [(-0.0).hex(), (5e-324).hex()]


def test_a_pass_becomes_a_version_of_the_model_of_the_settings(
    server: MlflowDouble, tmp_path: Path
) -> None:
    run = run_of(tmp_path)
    found = [tracked(server, run, model="language model").model_version for _ in range(2)]
    assert found == ["language model version 1", "language model version 2"]
    version = server.models["language model"][0]
    assert (version["run_id"], version["source"]) == ("run1", "mlflow-artifacts:/1/run1/artifacts")


def test_what_does_not_pass_is_no_version(server: MlflowDouble, tmp_path: Path) -> None:
    found = tracked(server, run_of(tmp_path, passes=False), model="language model")
    assert found.model_version == ""
    assert not server.models


def test_credentials_come_from_variables(server: MlflowDouble, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    server.authorization = f"Bearer {SECRET}"
    tracked(server, run, {**PAIR, **TOKEN})
    server.authorization = "Basic cm9ib3Q6aHVzaC1odXNo"
    tracked(server, run, PAIR)
    fault = refused(lambda: tracked(server, run, TOKEN))
    assert fault.message == "the MLflow server answered 401"
    assert fault.details == ("who is that",)
    assert fault.hint == (
        "Set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
    )
    half = {"MLFLOW_TRACKING_USERNAME": "robot"}
    assert refused(lambda: tracked(server, run, half)).message == (
        "MLFLOW_TRACKING_PASSWORD is not set"
    )
    broken = {"MLFLOW_TRACKING_TOKEN": f"{SECRET}\r\nX: y"}
    assert "holds an invalid character" in refused(lambda: tracked(server, run, broken)).message


def test_a_server_that_repeats_the_token_does_not_give_it_away(
    server: MlflowDouble, tmp_path: Path
) -> None:
    words = f'{{"error_code": "X", "message": "no {SECRET} \\u001b[31m::error::"}}'.encode()
    server.faults.append(Fault("POST", "runs/create", status(403, words)))
    fault = refused(lambda: tracked(server, run_of(tmp_path), TOKEN))
    assert fault.details[0].startswith("no *** ")
    assert "\x1b" not in fault.details[0]


def test_no_redirect_is_followed_with_what_is_sent(server: MlflowDouble, tmp_path: Path) -> None:
    with MlflowDouble() as other:
        act = status(307, Location=f"{other.url}/api/2.0/mlflow/runs/create")
        server.faults.append(Fault("POST", "runs/create", act))
        fault = refused(lambda: tracked(server, run_of(tmp_path), TOKEN))
        assert not other.asked
    assert fault.message == "the MLflow server answered 307"


@pytest.mark.parametrize(
    ("path", "act", "words"),
    [
        ("get-by-name", status(404, b"<html>not here</html>"), "answered 404"),
        ("get-by-name", status(200, b'{"experiment": 1}'), "sent an answer of another form"),
    ],
)
def test_a_server_that_is_none_is_told(
    server: MlflowDouble,
    path: str,
    act: Callable[[Handler], None],
    words: str,
    tmp_path: Path,
) -> None:
    server.faults.append(Fault("GET", path, act))
    fault = refused(lambda: tracked(server, run_of(tmp_path)))
    assert isinstance(fault, PublishError)
    assert words in fault.message
    assert fault.hint
    assert not server.runs


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "runs/log-batch", "answered 500"),
        ("PUT", "package.tar", "answered 500"),
        ("PUT", "package.sigstore.json", "answered 500"),
    ],
)
def test_a_run_that_broke_off_is_marked(
    server: MlflowDouble, method: str, path: str, words: str, tmp_path: Path
) -> None:
    server.faults.append(Fault(method, path, status(500)))
    fault = refused(lambda: tracked(server, run_of(tmp_path)))
    assert words in fault.message
    assert fault.details == ("its run run1 is marked as failed",)
    assert server.runs["run1"]["status"] == "FAILED"


@pytest.mark.parametrize(
    "root", ["s3://bucket", "file:///srv", "mlflow-artifacts:/../x", "mlflow-artifacts:/a//../b"]
)
def test_a_store_that_takes_nothing_is_told(
    server: MlflowDouble, root: str, tmp_path: Path
) -> None:
    server.artifact_root = root
    fault = refused(lambda: tracked(server, run_of(tmp_path)))
    assert "keeps artifacts in a store of its own" in fault.message
    assert "as `mlflow server` does by default" in fault.hint
    assert not server.artifacts


def test_a_fault_that_passes_is_no_fault(server: MlflowDouble, tmp_path: Path) -> None:
    server.faults += [
        Fault("POST", "runs/log-batch", status(503), times=1),
        Fault("GET", "get-by-name", status(500), times=2),
        Fault("POST", "runs/update", status(429, Retry_After="1"), times=1),
    ]
    assert tracked(server, run_of(tmp_path)).run_id == "run1"


@given(st.lists(st.text(min_size=1, max_size=400), max_size=20, unique=True))
def test_any_name_becomes_one_of_its_own_that_the_server_takes(names: list[str]) -> None:
    found = server_names(names)
    assert set(found) == set(names)
    assert len(set(found.values())) == len(names)
    for plain in found.values():
        assert re.fullmatch(r"[\w.\- /]+", plain, re.ASCII)
        assert len(plain) <= MAX_NAME
        assert not plain.startswith("/")
        assert not {"", ".", ".."} & set(plain.split("/"))


def test_a_plain_name_stays_what_it_is() -> None:
    assert server_names(["file.accuracy", "eval/loss"]) == {
        "file.accuracy": "file.accuracy",
        "eval/loss": "eval/loss",
    }
