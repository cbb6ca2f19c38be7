"""A real engine and the images that `make container` built; what is missing is skipped over."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gate.errors import RunError
from gate.isolation.engine import Engine, connect_docker, engine_address


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    address = engine_address(os.environ)
    engine = Engine(connect_docker(address), address)
    try:
        engine.answer()
    except RunError as error:
        pytest.skip(error.message)
    yield engine
    engine.close()


def _image(engine: Engine, variable: str) -> str:
    digest = os.environ.get(variable, "")
    if not digest:
        pytest.skip(f"{variable} names no image; `make container WHEELS=...` builds and names it")
    return engine.image_id(digest)


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> str:
    """Python and nothing else: as good a training image as any for a played training."""
    return _image(engine, "REPRO_GATE_BASE_IMAGE")


@pytest.fixture(scope="session")
def action_image(engine: Engine) -> str:
    _needs_root()
    return _image(engine, "REPRO_GATE_ACTION_IMAGE")


@pytest.fixture(scope="session")
def torch_image(engine: Engine) -> str:
    _needs_root()
    return _image(engine, "REPRO_GATE_TORCH_IMAGE")


def _needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give the workspace to the runner's account")


@pytest.fixture
def run_id(engine: Engine) -> Iterator[str]:
    """A label for containers; whatever a test did, none that carries it may be left."""
    run = secrets.token_hex(8)
    yield run
    assert engine.remove_run(run) == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another account can enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path
