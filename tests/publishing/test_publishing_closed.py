"""While a training runs, the file with a registry's login is closed to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from report_outcomes import REQUEST

from gate.isolation.stop_signals import StopSignals
from gate.package.secrets import FileSecrets
from gate.pipelines.delivery import with_secrets_closed
from gate.pipelines.entry import build_adapters
from gate.settings.delivery_sections import PublishSettings
from gate.system.console import QuietProgress
from gate.system.files.files import LocalFiles

FILES = LocalFiles()
USER = {"REPRO_GATE_REGISTRY_USER": "robot", "REPRO_GATE_REGISTRY_PASSWORD": "hush"}


@pytest.mark.parametrize(
    ("place", "more", "expected"),
    [
        ("registry.example.org/team/runs", {}, ["/home/robot/.docker/config.json"]),
        ("registry.example.org/team/runs", {"DOCKER_CONFIG": "/d"}, ["/d/config.json"]),
        # the login is elsewhere
        ("registry.example.org/team/runs", USER, []),
        # nothing is published: the file is none of this call's business
        (None, {}, []),
    ],
)
def test_the_file_of_docker_login_is_closed_where_it_logs_in(
    place: str | None, more: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    closed: list[Path] = []

    @contextmanager
    def close(places: tuple[Path, ...], _: Path) -> Iterator[None]:
        closed.extend(places)
        yield

    variables = {"HOME": "/home/robot", **more}
    built = build_adapters(FILES, tmp_path, QuietProgress(), StopSignals(), variables)
    settings = REQUEST.settings.model_copy(update={"publish": PublishSettings(oci=place)})
    request = replace(REQUEST, settings=settings)
    adapters = with_secrets_closed(
        request, replace(built, closed=close), FileSecrets(None, FILES, {})
    )
    with adapters.closed((), tmp_path):
        assert list(map(str, closed)) == expected
