"""A fake MLflow tracking server, with the API that a client needs to log one run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from web_double import Handler, WebDouble

API = "/api/2.0/mlflow/"
STORE = "/api/2.0/mlflow-artifacts/artifacts/"


class MlflowDouble(WebDouble):
    """Experiments by name and runs by number; `authorization` is the header that it demands."""

    def __init__(self) -> None:
        super().__init__()
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.artifacts: dict[str, bytes] = {}
        self.models: dict[str, list[dict[str, Any]]] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.authorization = ""
        self.artifact_root = "mlflow-artifacts:"

    def serve(self, handler: Handler) -> None:
        content = handler.body()
        url = urlsplit(handler.path)
        if self.authorization not in {"", handler.headers.get("Authorization", "")}:
            handler.answer(401, b'{"error_code": "UNAUTHENTICATED", "message": "who is that"}')
        elif url.path.startswith(STORE):
            self.artifacts[url.path.removeprefix(STORE)] = content
            handler.answer(200, b"{}")
        elif url.path == f"{API}experiments/get-by-name":
            (name,) = parse_qs(url.query)["experiment_name"]
            self._tell(handler, self._experiment(name))
        else:
            body: dict[str, Any] = json.loads(content)
            path = url.path.removeprefix(API)
            self.requests.append((path, body))
            self._tell(handler, ANSWERS[path](self, body))

    def _tell(self, handler: Handler, found: dict[str, Any] | str) -> None:
        if isinstance(found, str):
            status = 404 if found == "RESOURCE_DOES_NOT_EXIST" else 400
            body = {"error_code": found, "message": "no"}
            handler.answer(status, json.dumps(body).encode())
        else:
            handler.answer(200, json.dumps(found).encode())

    def _experiment(self, name: str) -> dict[str, Any] | str:
        if name not in self.experiments:
            return "RESOURCE_DOES_NOT_EXIST"
        return {"experiment": {"experiment_id": self.experiments[name], "name": name}}

    def new_experiment(self, body: dict[str, Any]) -> dict[str, Any] | str:
        if body["name"] in self.experiments:
            return "RESOURCE_ALREADY_EXISTS"
        self.experiments[body["name"]] = str(len(self.experiments) + 1)
        return {"experiment_id": self.experiments[body["name"]]}

    def new_run(self, body: dict[str, Any]) -> dict[str, Any]:
        run_id = f"run{len(self.runs) + 1}"
        tags = {tag["key"]: tag["value"] for tag in body["tags"]}
        self.runs[run_id] = body | {"tags": tags, "params": {}, "metrics": [], "status": "RUNNING"}
        return {"run": {"info": self._info(run_id)}}

    def _info(self, run_id: str) -> dict[str, str]:
        return {"run_id": run_id, "artifact_uri": f"{self.artifact_root}/1/{run_id}/artifacts"}

    def search(self, body: dict[str, Any]) -> dict[str, Any]:
        commit = body["filter"].split("'")[1]
        found = [name for name, run in self.runs.items() if commit in run["tags"].values()]
        # NaN as a bare word, which the real server's JSON contains too
        return {"runs": [{"info": self._info(name), "data": float("nan")} for name in found]}

    def log(self, body: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[body["run_id"]]
        run["params"] |= {one["key"]: one["value"] for one in body.get("params", [])}
        run["metrics"] += body.get("metrics", [])
        return {}

    def update(self, body: dict[str, Any]) -> dict[str, Any]:
        self.runs[body["run_id"]]["status"] = body["status"]
        return {}

    def new_model(self, body: dict[str, Any]) -> dict[str, Any] | str:
        if body["name"] in self.models:
            return "RESOURCE_ALREADY_EXISTS"
        self.models[body["name"]] = []
        return {}

    def new_version(self, body: dict[str, Any]) -> dict[str, Any]:
        self.models[body["name"]].append(body)
        return {"model_version": {"version": str(len(self.models[body["name"]]))}}


ANSWERS: dict[str, Callable[[MlflowDouble, dict[str, Any]], dict[str, Any] | str]] = {
    "experiments/create": MlflowDouble.new_experiment,
    "runs/create": MlflowDouble.new_run,
    "runs/search": MlflowDouble.search,
    "runs/log-batch": MlflowDouble.log,
    "runs/update": MlflowDouble.update,
    "registered-models/create": MlflowDouble.new_model,
    "model-versions/create": MlflowDouble.new_version,
}
