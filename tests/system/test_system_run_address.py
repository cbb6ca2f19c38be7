"""Which server gets the token for a run that a person names."""

from __future__ import annotations

import pytest
from each_row import each_row

from gate.errors import SettingsError
from gate.system.github.records import RunAddress, run_address

OURS = RunAddress(api_url="https://api.github.com", repository="o/model", run="4711")
JOB = {
    "GITHUB_SERVER_URL": "https://ghe.example:8443",
    "GITHUB_REPOSITORY": "o/model",
    "GITHUB_API_URL": "https://ghe.example:8443/api/v3",
}


@each_row(
    "remote",
    [
        "https://github.com/o/model",
        "https://github.com/o/model.git",
        "https://x-access-token:secret@github.com/o/model.git/",
        "git@github.com:o/model.git",
        "ssh://git@github.com/o/model.git",
        "ssh://git@github.com:22/o/model",
    ],
)
def test_a_number_is_about_origin(remote: str) -> None:
    assert run_address("4711", {"origin": remote}, {}) == OURS


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/o/model/actions/runs/4711",
        "https://github.com/o/model/actions/runs/4711/job/99?pr=7",
        "https://github.com/O/Model/actions/runs/4711#artifacts",
    ],
)
def test_a_url_names_any_remote(url: str) -> None:
    remotes = {"origin": "git@github.com:me/model.git", "up": "https://github.com/o/model"}
    found = run_address(url, remotes, {})
    assert (found.repository.lower(), found.run) == ("o/model", "4711")


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/evil/model/actions/runs/1",
        "https://github.com.evil.example/o/model/actions/runs/1",
        "https://evil.example/o/model/actions/runs/1",
    ],
)
def test_the_token_goes_to_no_repository_that_is_not_the_clones(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        run_address(url, {"origin": "https://github.com/o/model"}, {})
    assert "is not a remote of this clone" in caught.value.message


@each_row("text", ["", "0", "-1", "4711 ", "main", "https://github.com/o/model"])
def test_what_is_no_run_is_told(text: str) -> None:
    with pytest.raises(SettingsError, match="neither a run's number nor its URL"):
        run_address(text, {"origin": "https://github.com/o/model"}, {})


def test_without_an_origin_a_number_is_about_the_only_remote() -> None:
    assert run_address("4711", {"up": "https://github.com/o/model"}, {}) == OURS
    for remotes in ({}, {"origin": "/srv/model.git"}):
        with pytest.raises(SettingsError, match="no remote `origin` on GitHub"):
            run_address("4711", remotes, {})


def test_an_enterprise_server_is_asked_only_where_its_api_is_told() -> None:
    remotes = {"origin": "git@ghe.example:o/model.git"}
    with pytest.raises(SettingsError) as caught:
        run_address("4711", remotes, {})
    assert "GITHUB_API_URL" in caught.value.hint
    told = {"GITHUB_API_URL": "https://ghe.example/api/v3"}
    assert run_address("4711", remotes, told).api_url == "https://ghe.example/api/v3"
    resident = run_address("4711", {"origin": "https://octo.ghe.com/o/model"}, {})
    assert resident.api_url == "https://api.octo.ghe.com"


def test_in_a_job_a_number_is_about_its_repository() -> None:
    found = run_address("4711", {}, JOB)
    assert found == RunAddress(
        api_url="https://ghe.example:8443/api/v3", repository="o/model", run="4711"
    )
    url = "https://ghe.example:8443/o/model/actions/runs/4711"
    assert run_address(url, {}, JOB) == found
