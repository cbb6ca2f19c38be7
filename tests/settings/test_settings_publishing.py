"""Where sealed packages may go: never in the clear, and to a name that is one place."""

from __future__ import annotations

import pytest
from each_row import each_row

from gate.errors import SettingsError
from gate.settings.gate_settings import GateSettings
from gate.settings.load import MINIMAL_FILE, parse_settings, training_digest


def _parse(text: str) -> GateSettings:
    return parse_settings((MINIMAL_FILE + text).encode(), "repro-gate.yml")


def _faults(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        _parse(text)
    return "\n".join(caught.value.details)


@each_row(
    "name",
    [
        "registry.example.org/team/runs",
        "localhost/runs",
        "localhost:5000/runs",
        "127.0.0.1:5000/a/b-c/d__e.f",
        "machine:5000/runs",
        "REGISTRY.example.org/runs",
    ],
)
def test_a_registry_and_a_name_in_it(name: str) -> None:
    assert _parse(f"publish: {{oci: '{name}'}}\n").publish.oci == name


@each_row(
    "name",
    [
        "team/runs",
        "registry.example.org",
        "registry.example.org/",
        "https://registry.example.org/runs",
        "registry.example.org/runs:latest",
        "registry.example.org/runs@sha256:" + "0" * 64,
        "registry.example.org/../runs",
        "registry.example.org/Runs",
        "user@registry.example.org/runs",
        "registry.example.org/runs?x=1",
        "registry.example.org//runs",
        "registry.example.org/runs/",
        " registry.example.org/runs",
        "registry.example.org/a----------------------------------------!",
    ],
)
def test_anything_else_is_refused_with_an_example(name: str) -> None:
    told = _faults(f'publish: {{oci: "{name}"}}\n')
    assert "publish.oci: must be a registry and a name in it" in told
    assert "for example registry.example.org/team/runs" in told


def test_credentials_go_nowhere_in_the_clear() -> None:
    told = _faults("publish: {mlflow: {uri: 'http://mlflow.example.org'}}\n")
    assert "publish.mlflow.uri: must be an address that begins with https://" in told


def test_a_server_has_an_experiment_unless_another_is_named() -> None:
    found = _parse("publish: {mlflow: {uri: 'https://mlflow.example.org/'}}\n").publish.mlflow
    assert found is not None
    assert (found.uri, found.experiment) == ("https://mlflow.example.org", "repro-gate")
    assert found.registered_model is None


def test_a_models_name_is_one_part_of_an_address() -> None:
    text = "publish: {mlflow: {uri: 'https://a.example', registered_model: 'a/b'}}\n"
    assert "publish.mlflow.registered_model" in _faults(text)


def test_publishing_is_no_part_of_the_experiment() -> None:
    published = _parse("publish: {oci: registry.example.org/runs}\n")
    assert training_digest(published) == training_digest(_parse(""))


@pytest.mark.parametrize("name", ["TOKEN", "USERNAME", "PASSWORD"])
def test_what_logs_in_at_mlflow_is_not_for_the_training(name: str) -> None:
    text = f"  pass_env: [MLFLOW_TRACKING_{name}]\n"
    assert f"'MLFLOW_TRACKING_{name}' is reserved: the training must not see it" in _faults(text)
