"""`publish` of the settings, and `repro-gate fetch`: a sealed pass outlives its job."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Ended, Run, record
from mlflow_double import MlflowDouble
from oci_double import OciDouble
from played_training import Project
from web_double import Fault, Handler, cut, status

SECRET = "hush-hush"
Gate = Callable[..., Ended]


@pytest.fixture
def oci() -> Iterator[OciDouble]:
    with OciDouble() as server:
        yield server


@pytest.fixture
def mlflow() -> Iterator[MlflowDouble]:
    with MlflowDouble() as server:
        yield server


@pytest.fixture
def gated(project: Project, run: Run, tmp_path: Path) -> Gate:
    """Set where to publish, and gate with a key; each call has an output folder of its own."""
    record(project, run)
    project.commit()
    assert run("keys", "generate", "--out", tmp_path / "keys").code == 0
    key = tmp_path / "keys" / "signing-key.pem"

    def call(publish: str, *words: str, out: str = "out", sealed: bool = True) -> Ended:
        project.settings(f"publish: {publish}\n")
        keyed = ("--signing-key", key) if sealed else ()
        return run("gate", "--out", tmp_path / out, *keyed, *words)

    return call


def place(oci: OciDouble) -> str:
    return f"{oci.address}/team/runs"


def squeezed(text: str) -> str:
    """Without the line ends of a terminal of 80 columns."""
    return " ".join(text.split())


def test_a_sealed_pass_goes_to_the_registry_and_fetch_brings_it_back(
    project: Project, run: Run, gated: Gate, oci: OciDouble, tmp_path: Path
) -> None:
    ended = gated(f"{{oci: '{place(oci)}'}}")
    assert ended.code == 0, ended.err
    commit = project.git("rev-parse", "HEAD")
    assert f"published: {place(oci)}@sha256:" in ended.out.replace("\n", "")
    comment = (tmp_path / "out" / "comment.md").read_text()
    assert f"commit-{commit}" in comment
    assert "sha256:" in comment

    fetched = run("fetch", "HEAD", "--out", tmp_path / "back")
    assert fetched.code == 0, fetched.err
    assert fetched.out.startswith(f"fetched {place(oci)}@sha256:")
    for path in (tmp_path / "back").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    (line,) = [one for one in fetched.out.splitlines() if "repro-gate verify" in one]
    words = shlex.split(line)[1:]
    words[words.index("--trusted-keys") + 1] = str(tmp_path / "keys" / "trusted-keys.json")
    verified = run(*words)
    assert (verified.code, verified.err) == (0, "")
    assert verified.out.startswith(f"verified: reproduced, commit {commit}")


def test_the_settings_say_which_server_experiment_and_model(
    gated: Gate, mlflow: MlflowDouble, tmp_path: Path
) -> None:
    settings = f"{{uri: '{mlflow.url}', experiment: nightly, registered_model: tiny}}"
    ended = gated(f"{{mlflow: {settings}}}")
    assert ended.code == 0, ended.err
    assert mlflow.experiments == {"nightly": "1"}
    assert list(mlflow.models) == ["tiny"]
    run = mlflow.runs["run1"]
    assert run["status"] == "FINISHED"
    assert run["params"]["train.max_steps"] == "3"
    assert run["params"]["train.command"] == '["python3", "train.py"]'
    assert run["params"]["applied.seed"] == "42"
    assert not [name for name in run["params"] if name.startswith("publish")]
    losses = [(one["step"], one["value"]) for one in run["metrics"]]
    assert losses[:3] == [(1, 2.5), (2, 2.25), (3, 2.125)]
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    trusted = json.loads((tmp_path / "keys" / "trusted-keys.json").read_text())
    tags = run["tags"]
    assert tags["repro-gate.commit"] == tags["mlflow.source.git.commit"] == verdict["commit"]
    assert tags["repro-gate.outcome"] == "reproduced"
    assert tags["repro-gate.sealed_by"] == trusted["keys"][0]["key_id"]
    assert len(tags["repro-gate.baseline_sha256"]) == len(tags["repro-gate.package_sha256"]) == 64
    names = {name.rpartition("/")[2] for name in mlflow.artifacts}
    assert {"package.tar", "package.dsse.json", "package.sigstore.json"} <= names
    comment = (tmp_path / "out" / "comment.md").read_text()
    assert "run1" in comment
    assert "tiny version 1" in comment
    assert "run1" in (tmp_path / "out" / "report.html").read_text()


def test_a_later_pass_of_a_commit_is_told_and_moves_no_tag(
    run: Run, gated: Gate, oci: OciDouble, mlflow: MlflowDouble, tmp_path: Path
) -> None:
    both = f"{{oci: '{place(oci)}', mlflow: {{uri: '{mlflow.url}'}}}}"
    gated(both)
    first = dict(oci.manifests)
    (tmp_path / "out" / "package.tar").unlink()
    again = run("gate", "--out", tmp_path / "two", "--signing-key", key_of(tmp_path))
    assert again.code == 0, again.err
    assert all(oci.manifests[name] == content for name, content in first.items())
    comment = (tmp_path / "two" / "comment.md").read_text()
    assert "tag still names an earlier package" in comment
    assert "has 1 run of this commit from earlier calls" in comment
    assert "still names an earlier package" in squeezed(again.out)
    assert sorted(mlflow.runs) == ["run1", "run2"]


def key_of(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "signing-key.pem"


@pytest.mark.parametrize("act", [status(403), cut])
def test_a_fault_changes_no_verdict_and_is_told_everywhere(
    gated: Gate,
    oci: OciDouble,
    mlflow: MlflowDouble,
    act: Callable[[Handler], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    oci.faults.append(Fault("POST", "/uploads/", act))
    mlflow.faults.append(Fault("POST", "runs/create", act))
    ended = gated(f"{{oci: '{place(oci)}', mlflow: {{uri: '{mlflow.url}'}}}}")
    assert ended.code == 0, ended.err
    pushed, tracked = "The package was not pushed to", "has no whole run of this"
    assert pushed in squeezed(ended.out)
    assert tracked in squeezed(ended.out)
    for name in ("comment.md", "summary.md", "report.html"):
        text = (tmp_path / "out" / name).read_text()
        assert pushed in text
        assert tracked in text
        assert SECRET not in text
    assert (tmp_path / "out" / "package.dsse.json").exists()


def test_a_bug_of_ours_there_changes_no_verdict(
    gated: Gate, oci: OciDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        message = "what nobody thought of"
        raise RuntimeError(message)

    monkeypatch.setattr("gate.publishing.registry.OciRegistry.push", broken)
    assert gated(f"{{oci: '{place(oci)}'}}").code == 0
    comment = (tmp_path / "out" / "comment.md").read_text()
    assert "repro-gate itself failed: RuntimeError: what nobody thought of" in comment


def test_a_pass_without_a_seal_stays_here_and_says_so(
    gated: Gate, oci: OciDouble, tmp_path: Path
) -> None:
    assert gated(f"{{oci: '{place(oci)}'}}", sealed=False).code == 0
    assert not oci.asked
    comment = (tmp_path / "out" / "comment.md").read_text()
    assert "Not published: no signing key was given." in comment


def test_what_does_not_pass_is_not_published(
    project: Project, gated: Gate, oci: OciDouble, tmp_path: Path
) -> None:
    project.play(losses=["2.5", "2.25", "9.0"])
    assert gated(f"{{oci: '{place(oci)}'}}").code == 1
    assert not oci.asked
    assert "ublished" not in (tmp_path / "out" / "comment.md").read_text()


def test_a_tracker_that_wants_every_verdict_gets_drifts_and_unsealed_passes_without_files(
    project: Project, gated: Gate, mlflow: MlflowDouble, tmp_path: Path
) -> None:
    wanted = f"{{mlflow: {{uri: '{mlflow.url}', registered_model: tiny, when: always}}}}"
    assert gated(wanted, sealed=False).code == 0
    secret = {"argparse.lr": "0.1", "argparse.token": '"(hidden)"', "argparse.name": '"small"'}
    hostile = {"argparse.torn": '"half', "argparse.bidi": '"\\u202e"'}
    project.play(losses=["2.5", "2.25", "9.0"], configuration=secret | hostile)
    assert gated(wanted).code == 1
    passed, drifted = mlflow.runs["run1"], mlflow.runs["run2"]
    outcomes = [run["tags"]["repro-gate.outcome"] for run in (passed, drifted)]
    assert outcomes == ["reproduced", "code-drift"]
    assert drifted["params"]["configuration.argparse.lr"] == "0.1"
    assert drifted["params"]["configuration.argparse.name"] == "small"
    assert drifted["params"]["configuration.argparse.token"] == "(hidden)"
    assert drifted["params"]["configuration.argparse.torn"] == '"half'
    assert drifted["params"]["configuration.argparse.bidi"] == '"\\u202e"'
    assert len(drifted["params"]["configuration_sha256"]) == 64
    assert (9.0, 3) in [(one["value"], one["step"]) for one in drifted["metrics"]]
    assert not mlflow.artifacts
    assert not mlflow.models
    assert "run2" in (tmp_path / "out" / "comment.md").read_text()


def test_credentials_reach_no_training_and_no_file(
    project: Project,
    run: Run,
    gated: Gate,
    oci: OciDouble,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oci.login, oci.scheme = f"robot:{SECRET}", "basic"
    monkeypatch.setenv("REPRO_GATE_REGISTRY_USER", "robot")
    monkeypatch.setenv("REPRO_GATE_REGISTRY_PASSWORD", SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    script = project.path / "train.py"
    script.write_text(f"import os\nprint(dict(os.environ))\n{script.read_text()}")
    project.commit()
    assert gated(f"{{oci: '{place(oci)}'}}").code == 0
    outputs = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    printed = (tmp_path / "out" / "evidence" / "strict-1" / "output.txt").read_text()
    assert "REPRO_GATE_SEED" in printed
    assert not [path for path in outputs if SECRET.encode() in path.read_bytes()]
    fetched = run("fetch", "HEAD", "--out", tmp_path / "back")
    assert SECRET not in fetched.out + fetched.err


def test_fetch_takes_a_certain_package(
    project: Project, run: Run, gated: Gate, oci: OciDouble, tmp_path: Path
) -> None:
    gated(f"{{oci: '{place(oci)}'}}")
    run("gate", "--out", tmp_path / "two", "--signing-key", key_of(tmp_path), "-q")
    commit = project.git("rev-parse", "HEAD")
    own = next(name for name in oci.manifests if name.startswith(f"commit-{commit}-"))
    digest = next(
        name for name, one in oci.manifests.items() if ":" in name and one == oci.manifests[own]
    )
    # outside of every clone: all of it is told
    words = ("fetch", commit, "--from", f"{place(oci)}@{digest}", "--json")
    ended = run(*words, "--out", tmp_path / "back")
    found = json.loads(ended.out)
    assert (found["commit"], found["reference"]) == (commit, f"{place(oci)}@{digest}")
    assert (tmp_path / "back" / "package.tar").read_bytes() == (
        tmp_path / "two" / "package.tar"
    ).read_bytes()


def test_a_gate_with_an_id_has_a_tag_of_its_own(
    project: Project, run: Run, gated: Gate, oci: OciDouble, tmp_path: Path
) -> None:
    gated(f"{{oci: '{place(oci)}'}}\nreport: {{gate_id: tiny}}")
    commit = project.git("rev-parse", "HEAD")
    assert f"commit-{commit}-tiny" in oci.manifests
    assert run("fetch", "HEAD", "--out", tmp_path / "one").code == 0
    other = run("fetch", "HEAD", "--gate-id", "other", "--out", tmp_path / "two")
    assert (other.code, f"has no commit-{commit}-other" in other.err) == (3, True)
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(
    ("words", "told", "hint"),
    [
        (("HEAD",), "no registry is named", "or set publish.oci in repro-gate.yml"),
        (
            ("nobody", "--from", "a.example/b"),
            "'nobody' is not a full hash",
            "Give all digits of the",
        ),
        (("HEAD", "--from", "team/runs"), "must be a registry and a name in it", "for example"),
        (("HEAD", "--from", "a.example/b@sha256:12"), "has no digest behind the @", "64 hex"),
        (("HEAD", "--from", "a.example/b", "--gate-id", "../x"), "is not the id of a gate", "hint"),
        (("HEAD", "--config", "none.yml"), "none.yml: no such file", "hint: "),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_call_that_cannot_be_meant_ends_with_2(
    run: Run, words: tuple[str, ...], told: str, hint: str
) -> None:
    ended = run("fetch", *words)
    assert ended.code == 2
    assert told in ended.err
    assert hint in ended.err
