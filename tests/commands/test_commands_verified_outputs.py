"""A stage of DVC that verifies a sealed package, as docs/verified-outputs.md writes it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from command_line import Run, played_once, record
from dvc_workshop import DvcRepository
from played_training import Project
from written_texts import ROOT

pytestmark = pytest.mark.skipif(
    shutil.which("dvc") is None, reason="dvc is not on the PATH: make test-data"
)
PAGE = (ROOT / "docs" / "verified-outputs.md").read_text("utf-8")
PARAMS, STAGES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
SEALED = (
    *("package.tar", "package.dsse.json", "package.provenance.dsse.json", "package.model.sig"),
)


def as_saved(state: bytes) -> bytes:
    """A captured state's tensors under the names that a script saves: `weight`."""
    end = 8 + int.from_bytes(state[:8], "little")
    header = json.loads(state[8:end])
    plain = {name.rpartition("/")[2]: value for name, value in header.items()}
    written = json.dumps(plain).encode()
    return len(written).to_bytes(8, "little") + written + state[end:]


@pytest.fixture
def pipeline(project: Project, run: Run, tmp_path: Path) -> DvcRepository:
    """A repository of DVC with the page's files, a sealed package and its model."""

    def seal() -> None:
        record(project, run)
        project.commit()
        assert run("keys", "generate", "--out", tmp_path / "keys").code == 0
        key = tmp_path / "keys" / "signing-key.pem"
        assert run("gate", "--out", tmp_path / "out", "--signing-key", key, "-q").code == 0

    played_once("sealed-by-command", project, seal)
    made = DvcRepository(tmp_path / "pipeline", str(tmp_path / "remote"))
    # the stage calls the program by its name
    made.environment["PATH"] = os.pathsep.join(
        (str(Path(sys.executable).parent), os.environ["PATH"])
    )
    for name in SEALED:
        shutil.copy(tmp_path / "out" / name, made.path)
    shutil.copy(tmp_path / "keys" / "trusted-keys.json", made.path)
    with tarfile.open(made.path / "package.tar") as package:
        state = package.extractfile("checkpoint/state.safetensors")
        assert state is not None
        (made.path / "model.safetensors").write_bytes(as_saved(state.read()))
    made.write("params.yaml", PARAMS.replace("0" * 40, project.git("rev-parse", "HEAD")))
    made.write("dvc.yaml", STAGES)
    return made


def test_a_model_of_the_sealed_run_is_verified_and_anything_else_locks_nothing(
    pipeline: DvcRepository,
) -> None:
    pipeline.dvc("repro", "verified")
    assert '"answer": "equal"' in (pipeline.path / "verified.json").read_text("utf-8")
    lock = pipeline.path / "dvc.lock"
    locked = lock.read_text("utf-8")
    for name in (*SEALED, "trusted-keys.json", "model.safetensors"):
        assert name in locked
    for name in ("model.safetensors", "package.tar", "package.dsse.json", "params.yaml"):
        path = pipeline.path / name
        plain = path.read_bytes()
        # the last tensor's bytes, a byte of the archive or of the seal, another commit
        place = len(plain) - 5 if name in {"model.safetensors", "params.yaml"} else len(plain) // 2
        path.write_bytes(plain[:place] + bytes([plain[place] ^ 1]) + plain[place + 1 :])
        with pytest.raises(subprocess.CalledProcessError):
            pipeline.dvc("repro", "verified")
        assert lock.read_text("utf-8") == locked, name
        path.write_bytes(plain)
    pipeline.dvc("repro", "verified")
    assert lock.read_text("utf-8") == locked
