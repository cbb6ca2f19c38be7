"""Record a sealed pass or a verdict as a run on an MLflow server, over its REST API 2.0."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final, TypeVar
from urllib.parse import quote, urlencode

import requests
from pydantic import BaseModel, Field, ValidationError

from gate.errors import DocumentError, GateError, PublishError
from gate.publishing.artifact import SealedFile, Tracked, TrackedRun
from gate.publishing.tracked import MAX_PARAMETER, MAX_TAG, cut, json_number, server_names
from gate.settings.delivery_sections import MlflowSettings
from gate.system.files.port import Files
from gate.system.http import POLICY, Connection, HttpAnswer, HttpRequest, RetryPolicy
from gate.system.login import Login
from gate.text.strict_json import parse_json
from gate.text.trackers import MLFLOW

TOKEN_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE = MLFLOW.login
# limits of one request: MLflow's REST API, "Log Batch"
METRICS_AT_ONCE: Final = 1000
WORDS_AT_ONCE: Final = 100
# Each run in the answer comes with all its parameters, so ask for few.
MAX_RUNS_COUNTED: Final = 50
COMMIT_TAG: Final = "repro-gate.commit"
LOGIN_HINT: Final = f"Set {TOKEN_VARIABLE}, or {USER_VARIABLE} and {PASSWORD_VARIABLE}."
PLACE_HINT: Final = "Check publish.mlflow: the server has to answer the REST API 2.0 of MLflow."
STORE_HINT: Final = "Let the server store artifacts itself, as `mlflow server` does by default."
_ARTIFACTS: Final = re.compile(
    r"mlflow-artifacts:(?://[^/]*)?/([\w-][\w.-]*(?:/[\w-][\w.-]*)*)/?\Z", re.ASCII
)
_HEADER: Final = re.compile(r"[!-~]+\Z")
_Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
_Answer = TypeVar("_Answer", bound=BaseModel)


class _Nothing(BaseModel):
    """An answer whose content is not used."""


class _ExperimentId(BaseModel):
    experiment_id: _Id


class _Experiment(BaseModel):
    experiment: _ExperimentId


class _RunInfo(BaseModel):
    run_id: _Id
    artifact_uri: str = Field(max_length=2000)


class _RunData(BaseModel):
    info: _RunInfo


class _Run(BaseModel):
    run: _RunData


class _Runs(BaseModel):
    runs: list[_RunData] = Field(default_factory=list, max_length=MAX_RUNS_COUNTED)


class _Version(BaseModel):
    version: Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]


class _VersionAnswer(BaseModel):
    model_version: _Version


class MlflowTracker:
    """The `Tracker` for MLflow; every failure is a `PublishError` without credentials."""

    def __init__(
        self,
        settings: MlflowSettings,
        variables: Mapping[str, str],
        files: Files,
        policy: RetryPolicy = POLICY,
    ) -> None:
        self._settings = settings
        self._variables = variables
        self._files = files
        self._policy = policy

    def track(self, run: TrackedRun) -> Tracked:
        """Make a new run in the experiment of the settings, with all data of `run`."""
        login = _login(self._variables)
        with Connection("the MLflow server", self._settings.uri, self._policy) as connection:
            if login is not None:
                connection.log_in(login)
            server = _Server(connection, self._settings.uri)
            experiment = self._experiment(server)
            earlier = _earlier_runs(server, experiment, run.commit)
            # Not repeatable: a second request would make a second run.
            made = server.ask("runs/create", _Run, _new_run(run, experiment), repeatable=False)
            info = made.run.info
            try:
                _log(server, info.run_id, run)
                for file in run.files:
                    server.put_artifact(info.artifact_uri, file, self._files)
                version = self._register(server, info, run)
                _end(server, info.run_id, "FINISHED", run.milliseconds)
            except GateError as fault:
                # An incomplete run must not look finished. If it cannot be marked as failed either,
                # report the first fault only.
                with suppress(GateError):
                    _end(server, info.run_id, "FAILED", run.milliseconds)
                fault.details = (*fault.details, f"its run {info.run_id} is marked as failed")
                raise
        again = f"The MLflow experiment has {earlier} of this commit from earlier calls."
        return Tracked(run_id=info.run_id, model_version=version, notes=(again,) if earlier else ())

    def _experiment(self, server: _Server) -> str:
        name = self._settings.experiment
        query = {"experiment_name": name}
        experiment = server.look("experiments/get-by-name", _Experiment, query)
        if experiment is None:
            # Another job may make the experiment at this moment. Then creating it fails, but
            # looking again finds it.
            with suppress(_ThereAlreadyError):
                made = server.ask("experiments/create", _ExperimentId, {"name": name})
                return made.experiment_id
            experiment = server.look("experiments/get-by-name", _Experiment, query)
        if experiment is None:
            raise server.connection.fault(f"cannot make the experiment {name!r}", PLACE_HINT)
        return experiment.experiment.experiment_id

    def _register(self, server: _Server, info: _RunInfo, run: TrackedRun) -> str:
        """Register the model; return name and version, or empty text if none is registered."""
        name = self._settings.registered_model
        if name is None or not run.passes:
            return ""
        with suppress(_ThereAlreadyError):
            server.ask("registered-models/create", _Nothing, {"name": name})
        body = {
            "name": name,
            "source": info.artifact_uri,
            "run_id": info.run_id,
            "tags": _words(run.tags, MAX_TAG),
        }
        made = server.ask("model-versions/create", _VersionAnswer, body, repeatable=False)
        return f"{name} version {made.model_version.version}"


class _ThereAlreadyError(PublishError):
    """The thing to create exists already."""


class _Server:
    """The API of one MLflow server."""

    def __init__(self, connection: Connection, uri: str) -> None:
        self.connection = connection
        self._uri = uri

    def ask(
        self, path: str, kind: type[_Answer], body: Mapping[str, object], *, repeatable: bool = True
    ) -> _Answer:
        """Send a POST request; raises `_ThereAlreadyError` or another `PublishError`."""
        ask = HttpRequest(
            method="POST",
            url=f"{self._uri}/api/2.0/mlflow/{path}",
            headers={"Content-Type": "application/json"},
            body=json.dumps(body, allow_nan=False).encode(),
            repeatable=repeatable,
        )
        return self._read(kind, self.connection.ask(ask))

    def look(self, path: str, kind: type[_Answer], query: Mapping[str, str]) -> _Answer | None:
        """Send a GET request; return None if the thing does not exist."""
        ask = HttpRequest(
            method="GET",
            url=f"{self._uri}/api/2.0/mlflow/{path}?{urlencode(query)}",
        )
        reply = self.connection.ask(ask)
        # Any other web server answers 404 too, but without this code.
        code, _ = _fault_of(reply.content)
        if reply.status == requests.codes.not_found and code == "RESOURCE_DOES_NOT_EXIST":
            return None
        return self._read(kind, reply)

    def put_artifact(self, folder: str, file: SealedFile, files: Files) -> None:
        """Upload a file in one request to the server's own artifact store."""
        match = _ARTIFACTS.match(folder)
        if match is None:
            scheme = folder.partition(":")[0][:20]
            raise self.connection.fault(
                f"keeps artifacts in a store of its own ({scheme!r}) and takes none", STORE_HINT
            )
        path = quote(f"{match[1]}/{file.name}")
        with files.open_binary(file.path, max_bytes=file.size_bytes) as stream:
            ask = HttpRequest(
                method="PUT",
                url=f"{self._uri}/api/2.0/mlflow-artifacts/artifacts/{path}",
                headers={"Content-Type": "application/octet-stream"},
                body=self.connection.upload(stream, file.size_bytes),
                # a stream that was sent is used up
                repeatable=False,
            )
            self._read(_Nothing, self.connection.ask(ask))

    def _read(self, kind: type[_Answer], reply: HttpAnswer) -> _Answer:
        if reply.status != requests.codes.ok:
            code, words = _fault_of(reply.content)
            if code == "RESOURCE_ALREADY_EXISTS":
                raise _ThereAlreadyError("it is there")
            denied = reply.status in {requests.codes.unauthorized, requests.codes.forbidden}
            raise self.connection.refused(reply, LOGIN_HINT if denied else PLACE_HINT, words)
        try:
            return kind.model_validate(_json(reply.content))
        except (DocumentError, ValidationError) as error:
            raise self.connection.fault("sent an answer of another form", PLACE_HINT) from error


def _login(variables: Mapping[str, str]) -> Login | None:
    """Return the login in the variables, or None without credentials."""
    token = variables.get(TOKEN_VARIABLE, "")
    user, password = (variables.get(name, "") for name in (USER_VARIABLE, PASSWORD_VARIABLE))
    if token:
        # A line end in the token would begin another HTTP header (CWE-113).
        if not _HEADER.match(token):
            raise PublishError(f"{TOKEN_VARIABLE} holds an invalid character", hint=LOGIN_HINT)
        return Login.bearer(token)
    if user and password:
        return Login.basic(user, password)
    if user or password:
        missing = PASSWORD_VARIABLE if user else USER_VARIABLE
        raise PublishError(f"{missing} is not set", hint=LOGIN_HINT)
    return None


def _new_run(run: TrackedRun, experiment: str) -> dict[str, object]:
    return {
        "experiment_id": experiment,
        "run_name": cut(run.name, MAX_PARAMETER),
        "start_time": run.milliseconds,
        # Tagged from the start, so that an interrupted run counts for its commit too.
        "tags": _words(run.tags, MAX_TAG),
    }


def _earlier_runs(server: _Server, experiment: str, commit: str) -> str:
    """Return the number of earlier runs of this commit, in words; empty without any."""
    body = {
        "experiment_ids": [experiment],
        "filter": f"tags.`{COMMIT_TAG}` = '{commit}'",
        "max_results": MAX_RUNS_COUNTED,
    }
    count = len(server.ask("runs/search", _Runs, body).runs)
    many = "or more " if count == MAX_RUNS_COUNTED else ""
    return "" if not count else "1 run" if count == 1 else f"{count} {many}runs"


def _log(server: _Server, run_id: str, run: TrackedRun) -> None:
    """Log parameters and metrics, in requests of the size that the server accepts."""
    parameters = _words(run.parameters, MAX_PARAMETER)
    for part in _parts(parameters, WORDS_AT_ONCE):
        server.ask("runs/log-batch", _Nothing, {"run_id": run_id, "params": part})
    names = server_names(metric.name for metric in run.metrics)
    metrics = [
        {
            "key": names[metric.name],
            "value": json_number(metric.value),
            "timestamp": run.milliseconds,
            "step": metric.step,
        }
        for metric in run.metrics
    ]
    for part in _parts(metrics, METRICS_AT_ONCE):
        server.ask("runs/log-batch", _Nothing, {"run_id": run_id, "metrics": part})


def _end(server: _Server, run_id: str, status: str, milliseconds: int) -> None:
    body = {"run_id": run_id, "status": status, "end_time": milliseconds}
    server.ask("runs/update", _Nothing, body)


def _words(words: Mapping[str, str], limit: int) -> list[dict[str, str]]:
    names = server_names(words)
    return [{"key": names[name], "value": cut(value, limit)} for name, value in words.items()]


def _parts(rows: Sequence[Mapping[str, object]], size: int) -> list[Sequence[Mapping[str, object]]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _json(content: bytes) -> object:
    # a metric of an earlier run may be NaN, which is not strict JSON
    return parse_json(content or b"{}", "the answer", non_finite=True)


def _fault_of(content: bytes) -> tuple[str, str]:
    """Return code and message of a refusal; both are empty if it is not MLflow's."""
    try:
        answer = _json(content)
    except DocumentError:
        return "", ""
    fields = answer if isinstance(answer, dict) else {}
    code, message = fields.get("error_code"), fields.get("message") or fields.get("detail")
    return (
        code if isinstance(code, str) else "",
        message if isinstance(message, str) else "",
    )
