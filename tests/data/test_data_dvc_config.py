"""What is taken of a `.dvc/config`, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from each_row import each_row

from gate.data.dvc import fetch_config
from gate.errors import DataError

TOP = Path("/srv/clone")
CONFIG = b"""\
[core]
    remote = Store
    autostage = true
[cache]
    dir = /elsewhere
    type = symlink
['remote "store"']
    url = s3://bucket/x
    endpointurl = https://s3.example.org
    bearer_token_command = curl
"""


def made(*configs: bytes, own_files: bool = False) -> str:
    return fetch_config([(one, own_files) for one in configs], TOP, Path("/cache/objects"))[0]


def refused(*configs: bytes) -> str:
    with pytest.raises(DataError) as caught:
        made(*configs)
    assert caught.value.hint
    return caught.value.message


def test_remotes_are_taken_and_nothing_that_runs_or_moves() -> None:
    assert made(CONFIG) == (
        "[core]\nremote = store\nanalytics = false\ncheck_update = false\nautostage = false\n"
        "no_scm = true\n[cache]\ndir = '/cache/objects'\ntype = copy\n"
        "['remote \"store\"']\nurl = 's3://bucket/x'\nendpointurl = https://s3.example.org\n"
    )


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("../store", "/srv/clone/store"),
        ("../../store", "/srv/store"),
        ("'/mnt/my store'", "/mnt/my store"),
        ("ssh://host/x", "ssh://host/x"),
    ],
)
def test_a_folder_is_counted_from_the_clone(url: str, place: str) -> None:
    assert f"url = '{place}'\n" in made(CONFIG.replace(b"s3://bucket/x", url.encode()))


def test_a_later_configuration_is_stronger() -> None:
    local = b"['remote \"store\"']\n    secret_access_key = s\n    url = s3://other/y\n"
    text = made(CONFIG, local)
    assert "url = 's3://other/y'\n" in text
    assert "secret_access_key = s\n" in text
    assert "endpointurl = https://s3.example.org\n" in text


def test_a_login_in_the_clone_counts_only_where_the_clone_is_trusted() -> None:
    config = CONFIG + b"    configpath = ../aws.ini\n"
    assert refused(config) == (
        "data: .dvc/config: configpath of the remote 'store' is in the clone: a pull request "
        "could write it"
    )
    assert "configpath = '/srv/clone/aws.ini'\n" in made(config, own_files=True)


@each_row(
    ("config", "told"),
    [
        (
            b"",
            "data: .dvc/config names no default remote, so nothing says where the data is stored",
        ),
        (b"[core]\nremote = x\n", "data: .dvc/config names the default remote 'x', which it"),
        (b"no section\n", "data: .dvc/config cannot be read: "),
        (b"\xff", "data: .dvc/config cannot be read: "),
        (CONFIG + b"    version_aware = true\n", "the remote 'store' has version_aware = true"),
        (CONFIG + b"    region = a\n      b\n", "has a value of more than one line"),
        (b"#" * 70_000, "data: .dvc/config has 70,000 bytes"),
    ],
)
def test_what_cannot_be_used_is_one_error(config: bytes, told: str) -> None:
    assert told in refused(config)
