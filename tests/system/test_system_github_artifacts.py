"""An artifact of a run, from a server that plays GitHub and a store under another host name."""

from __future__ import annotations

import io

import pytest
from fake_github import FakeGitHub
from github_artifacts import STORE_HOST, StoredArtifact
from github_client import AT_ONCE
from github_failures import Failure

from gate.errors import PublishError
from gate.system.github import artifacts
from gate.system.github.artifacts import fetch_artifact
from gate.system.github.records import RunAddress


def fetch(
    github: FakeGitHub, run: str = "4711", name: str = "", gate_id: str = "default"
) -> tuple[str, bytes]:
    sink = io.BytesIO()
    address = RunAddress(api_url=github.api_url, repository="o/model", run=run)
    found = fetch_artifact(sink, address, github.token, name=name, gate_id=gate_id, policy=AT_ONCE)
    return found, sink.getvalue()


def test_the_archive_comes_from_the_store_and_the_token_does_not_go_there(
    github: FakeGitHub,
) -> None:
    github.add_artifact(b"evidence", name="repro-gate-evidence")
    github.add_artifact(b"the archive")
    github.add_artifact(b"of another run", run=4712)
    assert fetch(github) == ("repro-gate", b"the archive")
    listing, asked, store = github.requests
    assert {one.headers["authorization"] for one in (listing, asked)} == {f"Bearer {github.token}"}
    assert store.headers["host"].startswith(f"{STORE_HOST}:")
    assert "authorization" not in store.headers
    assert github.token not in str(store)


def test_not_even_netrc_gives_the_store_a_credential(
    github: FakeGitHub, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    netrc = tmp_path_factory.mktemp("home") / "netrc"
    netrc.write_text(f"machine {STORE_HOST} login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    github.add_artifact(b"x")
    fetch(github)
    assert "authorization" not in github.requests[-1].headers


def test_of_two_attempts_the_newest_counts_and_an_expired_one_not_at_all(
    github: FakeGitHub,
) -> None:
    github.add_artifact(b"first")
    github.add_artifact(b"second")
    github.artifacts.add(StoredArtifact(run=4711, name="repro-gate", archive=b"", expired=True))
    assert fetch(github)[1] == b"second"


def test_a_gates_own_artifact_goes_before_the_usual_one(github: FakeGitHub) -> None:
    github.add_artifact(b"of the only gate")
    assert fetch(github, gate_id="a100") == ("repro-gate", b"of the only gate")
    github.add_artifact(b"of this gate", name="repro-gate-a100")
    assert fetch(github, gate_id="a100") == ("repro-gate-a100", b"of this gate")
    assert fetch(github) == ("repro-gate", b"of the only gate")


def test_the_only_artifact_is_taken_whatever_its_name(github: FakeGitHub) -> None:
    github.add_artifact(b"only", name="gpu")
    assert fetch(github) == ("gpu", b"only")


def test_of_several_others_one_has_to_be_named(github: FakeGitHub) -> None:
    github.add_artifact(b"a", name="gate-a")
    github.add_artifact(b"b", name="gate-\x1b[31mb")
    with pytest.raises(PublishError) as caught:
        fetch(github)
    assert caught.value.message == "this run has no artifact 'repro-gate'"
    assert "--artifact" in caught.value.hint
    assert caught.value.details == ("gate-a", "gate-\\x1b[31mb")
    assert fetch(github, name="gate-a")[1] == b"a"


def test_what_is_gone_is_told(github: FakeGitHub) -> None:
    github.artifacts.add(StoredArtifact(run=4711, name="repro-gate", archive=b"", expired=True))
    with pytest.raises(PublishError, match="its artifacts have expired"):
        fetch(github)
    with pytest.raises(PublishError) as caught:
        fetch(github, run="99")
    assert caught.value.message == "the run was not found (404)"
    assert "named by its URL" in caught.value.hint


@pytest.mark.parametrize(
    "store", ["", "ftp://localhost/store/1", "file:///etc/passwd", "http:///store/1"]
)
def test_an_address_that_is_none_is_not_asked(github: FakeGitHub, store: str) -> None:
    github.add_artifact(b"x")
    github.artifacts.store = store
    with pytest.raises(PublishError):
        fetch(github)


def test_the_store_may_not_send_on(github: FakeGitHub) -> None:
    github.add_artifact(b"x")
    github.artifacts.store_status = 302
    with pytest.raises(PublishError, match=r"refused the download \(302\)"):
        fetch(github)


def test_more_than_the_limit_is_not_taken(
    github: FakeGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "MAX_ARTIFACT_BYTES", 1024)
    github.artifacts.add(
        StoredArtifact(run=4711, name="repro-gate", archive=b"x" * 2048, size_in_bytes=10)
    )
    with pytest.raises(PublishError, match="the artifact is larger than"):
        fetch(github)
    github.artifacts.kept[1].size_in_bytes = 2048
    with pytest.raises(PublishError, match="the artifact is larger than"):
        fetch(github)
    # told by the list: not even asked for
    assert len(github.requests) == 4


def test_a_token_that_may_not_read_artifacts_is_told(github: FakeGitHub) -> None:
    github.fail_next("GET", Failure.REFUSED)
    with pytest.raises(PublishError) as caught:
        fetch(github)
    assert caught.value.message == "the token may not read artifacts (403)"
    assert "`actions: read`" in caught.value.hint
