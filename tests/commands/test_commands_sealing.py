from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from command_line import Run, played_once, record
from played_training import Project

from gate.errors import ExitCode


@pytest.fixture
def sealed(project: Project, run: Run, tmp_path: Path) -> Path:
    """A passed gate's output folder, sealed; the keys lie beside the project."""

    def seal() -> None:
        record(project, run)
        project.commit()
        assert run("keys", "generate", "--out", tmp_path / "keys").code == 0
        key = tmp_path / "keys" / "signing-key.pem"
        ended = run("gate", "--out", tmp_path / "out", "--signing-key", key, "-q")
        assert ended.code == 0, ended.err

    played_once("sealed-by-command", project, seal)
    return tmp_path / "out"


def _verify(run: Run, sealed: Path, commit: str, *more: str) -> tuple[int, str]:
    trust = sealed.parent / "keys" / "trusted-keys.json"
    ended = run(
        "verify", sealed / "package.tar", "--trusted-keys", trust, "--commit", commit, *more
    )
    return ended.code, ended.out + ended.err


def test_a_sealed_pass_verifies(project: Project, run: Run, sealed: Path) -> None:
    code, text = _verify(run, sealed, project.git("rev-parse", "HEAD"))
    assert code == 0
    assert text.startswith("verified: reproduced, commit ")
    assert "verdict, provenance, model: three statements in 5 files" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_model_passes_only_as_what_was_sealed(
    project: Project, run: Run, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sealed)
    with tarfile.open("package.tar") as package:
        member = package.extractfile("checkpoint/state.safetensors")
        assert member is not None
        data = member.read()
    model = Path("model.safetensors")
    length = int.from_bytes(data[:8], "little")
    header, tensors = json.loads(data[8 : 8 + length]), data[8 + length :]
    commit = project.git("rev-parse", "HEAD")

    def answered(changed: dict[str, object]) -> tuple[int, str]:
        # as the harness writes it; the played training leaves that out
        text = json.dumps({"__metadata__": {"repro_gate_names": "paths"}, **changed}).encode()
        model.write_bytes(len(text).to_bytes(8, "little") + text + tensors)
        code, told = _verify(run, sealed, commit, "--model", str(model))
        assert max(map(len, told.splitlines())) <= 80
        return code, " ".join(told.partition("\nverified: ")[0].split())

    assert answered(header) == (
        0,
        "model.safetensors is, value for value, what the sealed run saved",
    )
    end = [len(tensors)] * 2
    more = {**header, "best/w": {"dtype": "F32", "shape": [0], "data_offsets": end}}
    hint = (
        "hint: Do not load it as that model. Use the file in the package, or name the file that "
        "you deploy in train.checkpoint, so that a gate seals it as it is."
    )
    assert answered(more) == (
        1,
        f"model.safetensors is not the sealed model: it holds more than what was sealed {hint}",
    )
    renamed = {name.replace("weight", "other"): entry for name, entry in header.items()}
    assert answered(renamed) == (
        1,
        f"model.safetensors is not the sealed run's model {hint}",
    )


def test_the_verify_command_names_the_trust_file_of_the_settings(
    project: Project, run: Run, sealed: Path
) -> None:
    project.settings("signing: {trusted_keys: keys/team.json}\n")
    key = sealed.parent / "keys" / "signing-key.pem"
    run("gate", "--out", sealed, "--signing-key", key, "-q")
    assert "--trusted-keys keys/team.json --commit" in (sealed / "comment.md").read_text()
    run("gate", "--out", sealed, "--signing-key", key, "--trusted-keys", "mine.json", "-q")
    assert "--trusted-keys mine.json --commit" in (sealed / "comment.md").read_text()


def _listed(project: Project, run: Run, sealed: Path, *words: str) -> None:
    """The key's trust file as the project's own, after `keys` with these words; committed."""
    trust = project.path / ".repro-gate" / "trusted-keys.json"
    shutil.copy(sealed.parent / "keys" / "trusted-keys.json", trust)
    if words:
        (key,) = json.loads(trust.read_text())["keys"]
        assert run("keys", words[0], key["key_id"][:16], *words[1:]).code == 0
    project.commit()


@pytest.mark.parametrize(
    ("words", "status"), [(("retire",), "retired"), (("revoke", "--reason", "lost"), "revoked")]
)
def test_a_key_that_no_longer_counts_is_refused_before_anything_is_trained(
    project: Project, run: Run, sealed: Path, words: tuple[str, ...], status: str
) -> None:
    _listed(project, run, sealed, *words)
    key = sealed.parent / "keys" / "signing-key.pem"
    ended = run("gate", "--out", sealed, "--signing-key", key)
    assert ended.code == 2
    assert f" is {status} in .repro-gate/trusted-keys.json: no seal by it is valid" in ended.err
    assert "strict" not in ended.err
    assert (sealed / "package.tar").exists()


def test_a_key_that_the_trust_file_lacks_is_told_at_the_start(
    project: Project, run: Run, sealed: Path
) -> None:
    _listed(project, run, sealed)
    assert run("keys", "generate", "--out", sealed.parent / "others").code == 0
    key = sealed.parent / "others" / "signing-key.pem"
    ended = run("gate", "--out", sealed, "--signing-key", key)
    assert ended.code == 0, ended.err
    assert "is not listed in .repro-gate/trusted-keys.json: its seal verifies only " in ended.err
    listed = run("gate", "--out", sealed, "--signing-key", sealed.parent / "keys/signing-key.pem")
    assert (listed.code, "not listed" in listed.err) == (0, False)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl command here")
@pytest.mark.parametrize("form", ["dsse.json", "sigstore.json"])
def test_what_is_explained_works_as_printed_where_the_command_was_called(
    project: Project, run: Run, sealed: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    commit = project.git("rev-parse", "HEAD")
    # two keys in the trust file, and names that a shell would take apart
    (sealed.parent / "keys" / "signing-key.pem").unlink()
    run("keys", "generate", "--out", sealed.parent / "keys")
    here = sealed.parent / "it's here"
    here.mkdir()
    monkeypatch.chdir(here)
    trust = ("--trusted-keys", "../keys/trusted-keys.json", "--commit", commit)
    names = (f"package.{form}", f"package.provenance.{form}", "package.model.sig")
    seals = [word for name in names for word in ("--seal", f"../out/{name}")]
    ended = run("verify", "../out/package.tar", *trust, *seals, "--explain")
    commands = ended.out.partition("\n# cosign")[0].partition("\n# model-signing")[0]
    done = subprocess.run(
        (shutil.which("sh") or "sh", "-c", commands), capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("Verified OK\n" * 3 + "1\n" * 4)
    assert done.stdout.endswith("verdict.json: OK\n")
    assert done.stderr == ""
    assert list(here.iterdir()) == []


def test_commands_come_as_text_alone(project: Project, run: Run, sealed: Path) -> None:
    code, text = _verify(run, sealed, project.git("rev-parse", "HEAD"), "--explain", "--json")
    assert (code, "--explain prints commands and no JSON" in text) == (2, True)


def test_a_weaker_isolation_than_demanded_is_refused(
    project: Project, run: Run, sealed: Path
) -> None:
    commit = project.git("rev-parse", "HEAD")
    code, text = _verify(run, sealed, commit, "--least-isolation", "uid")
    assert code == 1
    assert "the training ran under isolation none, at least uid is demanded" in text
    assert _verify(run, sealed, commit, "--least-isolation", "none")[0] == 0


def test_the_facts_come_as_json(project: Project, run: Run, sealed: Path) -> None:
    code, text = _verify(run, sealed, project.git("rev-parse", "HEAD"), "--json")
    assert code == 0
    assert json.loads(text)["isolation"]["mode"] == "none"


def test_one_flipped_byte_is_refused(project: Project, run: Run, sealed: Path) -> None:
    path = sealed / "package.tar"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    code, text = _verify(run, sealed, project.git("rev-parse", "HEAD"))
    assert code == 1
    assert text.startswith("error: ")


def test_another_commit_is_refused(run: Run, sealed: Path) -> None:
    code, text = _verify(run, sealed, "0" * 40)
    assert code == 1
    assert "commit" in text


@pytest.mark.usefixtures("project")
def test_the_private_key_is_nobody_elses_and_never_overwritten(run: Run, tmp_path: Path) -> None:
    run("keys", "generate", "--out", tmp_path / "keys")
    assert (tmp_path / "keys" / "signing-key.pem").stat().st_mode & 0o077 == 0
    ended = run("keys", "generate", "--out", tmp_path / "keys")
    assert (ended.code, "already holds a key" in ended.err) == (2, True)


@pytest.mark.usefixtures("project")
def test_a_second_key_joins_the_trust_file(run: Run, tmp_path: Path) -> None:
    run("keys", "generate", "--out", tmp_path / "keys")
    (tmp_path / "keys" / "signing-key.pem").rename(tmp_path / "old.pem")
    run("keys", "generate", "--out", tmp_path / "keys")
    trust = json.loads((tmp_path / "keys" / "trusted-keys.json").read_text())
    assert len(trust["keys"]) == 2


@pytest.mark.usefixtures("project")
def test_a_plain_key_must_be_asked_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REPRO_GATE_PASSPHRASE")
    ended = run("keys", "generate", "--out", tmp_path / "keys")
    assert ended.code == 2
    assert "a private key is not written without a pass phrase" in ended.err
    assert run("keys", "generate", "--out", tmp_path / "keys", "--allow-plain").code == 0


def test_a_dirty_pass_is_not_sealed(
    project: Project, run: Run, sealed: Path, tmp_path: Path
) -> None:
    project.write("notes.txt", "x")
    key = tmp_path / "keys" / "signing-key.pem"
    ended = run("gate", "--out", sealed, "--signing-key", key, "--allow-dirty")
    assert ended.code == 0
    assert "Not sealed: there were uncommitted changes" in ended.out
    assert not (sealed / "package.dsse.json").exists()


@pytest.mark.usefixtures("project")
def test_a_key_that_cannot_be_used_is_an_error_not_a_missing_seal(
    run: Run, sealed: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    ended = run("gate", "--out", sealed, "--signing-key", broken, "-q")
    assert ended.code != 0
    assert "the signing key cannot be read" in ended.err


# what the kernel does to a process whose mapped file another one has made shorter
SHORTER = """
import os, signal, sys
from gate.commands import verify
from gate import cli
class Shorter:
    def make_ready(self): pass
    def verified(self, *_): os.kill(os.getpid(), signal.SIGBUS)
verify.chosen_trust = lambda *_: Shorter()
sys.argv = ["repro-gate", "verify", "package.tar", "--commit", "c0ffee"]
cli.main()
"""


def test_a_package_that_becomes_shorter_meanwhile_is_told() -> None:
    done = subprocess.run(
        (sys.executable, "-c", SHORTER), capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.ERROR
    assert done.stderr.startswith(
        "error: a file became shorter, or its disk failed, while it was read\n"
    )


def test_a_study_of_the_commit_goes_into_the_package_and_under_its_seal(
    project: Project, run: Run, sealed: Path, tmp_path: Path
) -> None:
    study = tmp_path / "study" / "study.json"
    run("seeds", "--n", "2", "-q", "--out", study.parent)
    key = sealed.parent / "keys" / "signing-key.pem"
    ended = run("gate", "--out", sealed, "--signing-key", key, "--study", study, "-q")
    assert ended.code == 0, ended.err
    with tarfile.open(sealed / "package.tar") as package:
        packed = package.extractfile("study.json")
        assert packed is not None
        assert json.loads(packed.read()) == json.loads(study.read_text())
        readme = package.extractfile("README.md")
        assert readme is not None
        assert b"mean and spread over seeds, measured before this call" in readme.read()
    commit = project.git("rev-parse", "HEAD")
    assert _verify(run, sealed, commit)[0] == 0
    data = bytearray((sealed / "package.tar").read_bytes())
    place = data.index(b'"seeds":')
    data[place + 1 : place + 2] = b"S"
    (sealed / "package.tar").write_bytes(data)
    assert _verify(run, sealed, commit)[0] == 1


def test_a_study_of_another_training_is_refused(project: Project, run: Run, tmp_path: Path) -> None:
    study = tmp_path / "study" / "study.json"
    run("seeds", "--n", "2", "-q", "--out", study.parent)
    project.settings("determinism: {threads: 2}\n")
    ended = run("gate", "--study", study)
    assert (ended.code, "study.json: is of commit " in ended.err) == (2, True)
    text = study.read_text()
    study.write_text(text.replace(json.loads(text)["provenance"]["commit"], project.commit()))
    ended = run("gate", "--study", study)
    assert (ended.code, "was made under other training settings" in ended.err) == (2, True)
    assert "No such file" in run("gate", "--study", tmp_path / "nowhere.json").err


def test_a_study_on_other_bytes_of_the_declared_data_is_refused(
    project: Project, run: Run, tmp_path: Path
) -> None:
    data, study = tmp_path / "rows.csv", tmp_path / "study" / "study.json"
    data.write_text("1\n")
    project.settings(f"data: [{{path: {data}}}]\n")
    run("seeds", "--n", "2", "-q", "--out", study.parent)
    assert run("gate", "--study", study).code == 1
    data.write_text("2\n")
    ended = run("gate", "--study", study)
    assert ended.code == 2
    assert "--study: it was measured on other content of the declared data rows.csv\n" in ended.err
    assert "hint: Make the study again." in ended.err


def test_a_file_that_is_no_model_is_answered_by_the_sentence_and_the_hint(
    project: Project, run: Run, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sealed / "notes.txt").write_text("this is no model\n")
    monkeypatch.chdir(sealed)
    code, text = _verify(run, sealed, project.git("rev-parse", "HEAD"), "--model", "notes.txt")
    assert code == 1
    assert " ".join(text.split()) == (
        "notes.txt is not the sealed run's model: it contains no tensors of a model hint: Do not "
        "load it as that model. Use the file in the package, or name the file that you deploy in "
        "train.checkpoint, so that a gate seals it as it is."
    )
