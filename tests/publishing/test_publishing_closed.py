"""While a training runs, the files with the logins of registry and S3 are closed to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from each_row import each_row
from report_outcomes import REQUEST

from gate.isolation.stop_signals import StopSignals
from gate.package.secrets import FileSecrets
from gate.pipelines.call_setup import build_adapters
from gate.pipelines.delivery import with_secrets_closed
from gate.settings.delivery_sections import PublishSettings
from gate.system.console import QuietProgress
from gate.system.files.files import LocalFiles

FILES = LocalFiles()
USER = {"REPRO_GATE_REGISTRY_USER": "robot", "REPRO_GATE_REGISTRY_PASSWORD": "hush"}


RUNS = "registry.example.org/team/runs"
DOCKER = "/home/robot/.docker/config.json"


@each_row(
    ("places", "more", "expected"),
    [
        ({"oci": RUNS}, {}, [DOCKER]),
        ({"oci": RUNS}, {"DOCKER_CONFIG": "/d"}, ["/d/config.json"]),
        # the login is elsewhere
        ({"oci": RUNS}, USER, []),
        # nothing is published: the file is none of this call's business
        ({}, {}, []),
        ({"history": f"oci://{RUNS}"}, {}, [DOCKER]),
        ({"history": "s3://data/x"}, {}, ["/home/robot/.aws"]),
        (
            {"history": "s3://data/x", "oci": RUNS},
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/var/token"},
            [DOCKER, "/var/token", "/home/robot/.aws"],
        ),
        ({"history": "/srv/history"}, {}, []),
    ],
)
def test_files_of_logins_are_closed_where_the_gate_logs_in(
    places: dict[str, str], more: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    closed: list[Path] = []

    @contextmanager
    def close(places: tuple[Path, ...], _: Path) -> Iterator[None]:
        closed.extend(places)
        yield

    variables = {"HOME": "/home/robot", **more}
    built = build_adapters(FILES, tmp_path, QuietProgress(), StopSignals(), variables)
    settings = REQUEST.settings.model_copy(
        update={"publish": PublishSettings.model_validate(places)}
    )
    request = replace(REQUEST, settings=settings)
    adapters = with_secrets_closed(
        request, replace(built, closed=close), FileSecrets(None, FILES, {})
    )
    with adapters.closed((), tmp_path):
        assert list(map(str, closed)) == expected
