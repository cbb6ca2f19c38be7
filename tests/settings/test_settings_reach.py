"""Settings that come with a pull request ask for nothing outside of its own tree."""

from __future__ import annotations

import pytest
from each_row import each_row
from known_names import section_keys, setting_keys

from gate.errors import ExitCode, SettingsError
from gate.settings.load import MINIMAL_FILE, parse_settings
from gate.settings.reach import INSIDE, REACHES_OUT, reaching, refuse_reach

HEX = "a" * 64
IMAGE = f"image: 'x/y@sha256:{HEX}'"
POD = f"{IMAGE}, volume_claim: c"
# an entry of each key that reaches out: what a pull request would write
ASKS = {
    "train.pass_env": "pass_env: [HF_TOKEN]",
    "data.path": "data: [{path: /srv/mini}]",
    "data.dvc": "data: [{dvc: a.dvc}]",
    "data.lfs": "data: [{lfs: '*.bin'}]",
    "data.url": f"data: [{{url: 'https://example.org/a', sha256: {HEX}}}]",
    "fetch.cache": "fetch: {cache: /srv/fetched}",
    "fetch.max_bytes": "fetch: {max_bytes: 1}",
    "fetch.timeout_seconds": "fetch: {timeout_seconds: 1}",
    "isolation.image": f"isolation: {{{IMAGE}}}",
    "policy.images": "policy: {images: ['x/*']}",
    "isolation.gpus": f"isolation: {{{IMAGE}, gpus: [all]}}",
    "isolation.shm_bytes": f"isolation: {{{IMAGE}, shm_bytes: 1048576}}",
    "isolation.memory_bytes": f"isolation: {{{IMAGE}, memory_bytes: 67108864}}",
    "isolation.pids": f"isolation: {{{IMAGE}, pids: 16}}",
    "isolation.mode": "isolation: {mode: none}",
    "isolation.network": "isolation: {network: true}",
    "signing.trusted_keys": "signing: {trusted_keys: mine.json}",
    "signing.fulcio_url": "signing: {fulcio_url: 'https://example.org'}",
    "signing.rekor_url": "signing: {rekor_url: 'https://example.org'}",
    "signing.trusted_root": "signing: {trusted_root: mine.json}",
    "publish.oci": "publish: {oci: registry.example.org/x}",
    "publish.mlflow.uri": "publish: {mlflow: {uri: 'https://example.org'}}",
    "publish.mlflow.experiment": "publish: {mlflow: {uri: 'https://example.org', experiment: x}}",
    "publish.mlflow.when": "publish: {mlflow: {uri: 'https://example.org', when: always}}",
    "publish.mlflow.registered_model": "publish: "
    "{mlflow: {uri: 'https://example.org', registered_model: x}}",
    "cluster.engine": "cluster: {engine: slurm, folder: /s}",
    "cluster.nodes": "cluster: {engine: slurm, folder: /s, nodes: 2}",
    "cluster.tasks_per_node": "cluster: {engine: slurm, folder: /s, tasks_per_node: 2}",
    "cluster.options": "cluster: {engine: slurm, folder: /s, options: {partition: gpu}}",
    "cluster.folder": "cluster: {engine: slurm, folder: /srv/shared}",
    **dict.fromkeys(
        ("cluster.programs.submit", "cluster.programs.wait", "cluster.programs.cancel"),
        "cluster: {engine: exec, folder: /s, programs: {submit: /p/a, wait: /p/b, cancel: /p/c}}",
    ),
    **{
        f"cluster.pod.{key}": f"cluster: {{engine: kubernetes, folder: /s, pod: {{{POD}{more}}}}}"
        for key, more in {
            "image": "",
            "volume_claim": "",
            "namespace": ", namespace: team",
            "resources": ", resources: {memory: 1Gi}",
            "node_selector": ", node_selector: {a: b}",
            "tolerations": ", tolerations: [a]",
            "labels": ", labels: {a: b}",
        }.items()
    },
    "cluster.queue_seconds": "cluster: {engine: slurm, folder: /s, queue_seconds: 1}",
    "cluster.run_seconds": "cluster: {engine: slurm, folder: /s, run_seconds: 1}",
    "cluster.allocations": "cluster: {engine: slurm, folder: /s, allocations: 2}",
    "publish.history": "publish: {history: /srv/history}",
    "publish.pushgateway": "publish: {pushgateway: 'http://pushgateway:9091'}",
    "report.history": "report: {history: true}",
}


def text_with(line: str) -> bytes:
    """The minimal file and one thing more."""
    indent = "  " if line.startswith("pass_env") else ""
    return f"{MINIMAL_FILE}{indent}{line}\n".encode()


def test_every_key_of_the_schema_is_inside_the_tree_or_reaches_out() -> None:
    keys = frozenset(setting_keys()) - section_keys()
    assert keys - INSIDE - frozenset(REACHES_OUT) == frozenset()
    assert INSIDE | frozenset(REACHES_OUT) == keys
    assert not INSIDE & frozenset(REACHES_OUT)


def test_every_key_that_reaches_out_has_its_example_here() -> None:
    assert ASKS.keys() == REACHES_OUT.keys()


@each_row("key", ASKS)
def test_a_key_that_reaches_out_is_refused_by_name_and_reason(key: str) -> None:
    settings = parse_settings(text_with(ASKS[key]), "fuzz")
    with pytest.raises(SettingsError) as caught:
        refuse_reach(settings, "repro-gate.yml")
    fault = caught.value
    assert fault.exit_code == ExitCode.USAGE
    assert f"{key}: {REACHES_OUT[key]}" in fault.details
    assert fault.message.startswith("repro-gate.yml comes with this pull request, and ")
    assert "Merge the settings file first, in a pull request without the workflow" in fault.hint


def test_all_of_a_file_are_named_at_once() -> None:
    text = text_with("pass_env: [A]") + b"isolation: {network: true}\nreport: {history: true}\n"
    found = reaching(parse_settings(text, "fuzz"))
    assert tuple(found) == ("train.pass_env", "isolation.network", "report.history")


@each_row(
    "line",
    [
        "",
        "preprocess: {command: python make.py, out: data}",
        "isolation: {mode: uid, minimum: uid}",
        "isolation: {network: false, mode: auto}",
        "compare: {tolerances: [{metric: loss, absolute: 1}]}",
        "environment: {locks: [uv.lock]}",
        "report: {gate_id: nlp, history: false}",
        "data: []",
    ],
)
def test_what_a_first_pull_request_needs_is_allowed(line: str) -> None:
    refuse_reach(parse_settings(text_with(line), "fuzz"), "repro-gate.yml")
