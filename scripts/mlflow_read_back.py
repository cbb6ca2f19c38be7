"""Read a run back with MLflow's client; the last line of output is JSON: check to true or false.

Runs under the Python of MLflow's environment, so it imports nothing of this project.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    """Compare the run with the gate's facts: arguments are the server's URI and those, as JSON."""
    uri, expected = sys.argv[1], json.loads(sys.argv[2])
    mlflow: Any = importlib.import_module("mlflow")
    mlflow.set_tracking_uri(uri)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("interop")
    (run,) = client.search_runs([experiment.experiment_id])
    run_id = run.info.run_id
    metrics = {
        name: {
            str(point.step): point.value.hex() for point in client.get_metric_history(run_id, name)
        }
        for name in run.data.metrics
    }
    with tempfile.TemporaryDirectory() as folder:
        fetched = Path(client.download_artifacts(run_id, "", folder))
        files = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in fetched.iterdir()
        }
    (version,) = client.search_model_versions("name = 'digits'")
    tags, parameters = run.data.tags, run.data.params
    found = {
        "the run is finished": run.info.status == "FINISHED",
        "each value of each metric, to the last bit": metrics == expected["metrics"],
        "parameters": parameters["train.max_steps"].isdigit()
        and any(name.startswith("applied.") for name in parameters),
        "tags": tags["repro-gate.commit"] == tags["mlflow.source.git.commit"] == expected["commit"],
        "package and seals": files == expected["files"],
        "a version of the model": version.run_id == run_id,
    }
    sys.stdout.write(f"{json.dumps(found)}\n")


main()
