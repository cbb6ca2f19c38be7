"""A sealed package goes to a registry; what breaks on the way has its words."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from github_client import AT_ONCE
from hypothesis import given
from hypothesis import strategies as st
from oci_double import OciDouble
from registry_cases import (
    LOGIN,
    PASSWORD,
    TAG,
    WANTED,
    altered,
    manifest_of,
    pulled,
    pushed,
    refused,
    registry,
)
from sealed_files import COMMIT, sealed_artifact
from tunnel_proxy import TunnelProxy
from web_double import Fault, Handler, status

from gate.errors import PublishError
from gate.publishing.credentials import registry_login
from gate.publishing.registry import commit_tag
from gate.publishing.registry_api import RegistryClient, read_challenge
from gate.system.files.files import LocalFiles
from gate.system.http import Connection
from gate.system.login import Login


def test_what_was_pushed_is_fetched(either: OciDouble, tmp_path: Path) -> None:
    result = pushed(either, tmp_path / "in", package=b"x" * 300_000)
    found = pulled(either, tmp_path / "out")
    assert result.tag == TAG
    assert found.reference == result.reference
    assert (found.commit, found.outcome) == (COMMIT, "reproduced")
    assert found.files == ("package.dsse.json", "package.sigstore.json", "package.tar")
    for name in found.files:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "in" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == list(found.files)


def test_a_package_is_an_artifact_of_its_own_type(oci: OciDouble, tmp_path: Path) -> None:
    pushed(oci, tmp_path)
    manifest = manifest_of(oci, TAG)
    assert manifest["artifactType"] == "application/vnd.repro-gate.package.v1"
    assert manifest["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
    (layer,) = manifest["layers"]
    assert layer["mediaType"] == "application/vnd.repro-gate.package.v1.tar"
    assert manifest["annotations"] == {
        "org.opencontainers.image.created": "2026-11-23T09:00:00+00:00",
        "org.opencontainers.image.revision": COMMIT,
        "vnd.repro-gate.gate-id": "default",
        "vnd.repro-gate.outcome": "reproduced",
        "vnd.repro-gate.repository": "team/project",
    }


def test_the_seals_refer_to_the_package_and_the_tag_comes_last(
    either: OciDouble, tmp_path: Path
) -> None:
    result = pushed(either, tmp_path)
    digest = result.reference.partition("@")[2]
    (seals,) = [one for one in map(json.loads, either.manifests.values()) if "subject" in one][:1]
    assert seals["subject"]["digest"] == digest
    written = [path.rpartition("/")[2] for path in either.paths("PUT")]
    assert written[-1] == TAG
    fallback = digest.replace(":", "-")
    assert (fallback in either.manifests) != either.keeps_referrers


def test_the_same_files_give_the_same_reference(tmp_path: Path) -> None:
    references = set()
    for number in range(2):
        with OciDouble() as server:
            result = pushed(server, tmp_path / str(number))
            references.add(result.reference.partition("@")[2])
    assert len(references) == 1


def test_what_the_registry_has_is_not_sent_again(oci: OciDouble, tmp_path: Path) -> None:
    pushed(oci, tmp_path)
    before = len(oci.paths("POST"))
    assert pushed(oci, tmp_path).notes == ()
    assert len(oci.paths("POST")) == before


def test_a_later_package_of_a_commit_replaces_no_tag(either: OciDouble, tmp_path: Path) -> None:
    first = pushed(either, tmp_path / "first")
    second = pushed(either, tmp_path / "second", package=b"another")
    digest = second.reference.partition("@")[2]
    assert second.tag == f"{TAG}-{digest.removeprefix('sha256:')[:12]}"
    assert second.notes == (
        "The commit's tag still names an earlier package; this one has its own tag.",
    )
    assert pulled(either, tmp_path / "by-tag").reference == first.reference
    by_digest = replace(WANTED, digest=digest)
    assert pulled(either, tmp_path / "by-digest", by_digest).reference == second.reference
    assert (tmp_path / "by-digest" / "package.tar").read_bytes() == b"another"


def test_each_gate_of_a_repository_has_a_tag() -> None:
    assert commit_tag(COMMIT, "language-model") == f"{TAG}-language-model"


@pytest.mark.parametrize("scheme", ["basic", "bearer"])
def test_a_login_is_given_where_it_is_asked_for(
    oci: OciDouble, scheme: str, tmp_path: Path
) -> None:
    oci.login, oci.scheme = f"robot:{PASSWORD}", scheme
    registry(oci, LOGIN).push(sealed_artifact(tmp_path / "in"))
    assert TAG in oci.manifests
    assert oci.asked[0].authorization == ""
    if scheme == "bearer":
        assert oci.token_query == {
            "service": ["double"],
            "scope": ["repository:team/runs:pull,push"],
        }
    registry(oci, LOGIN).pull(WANTED, tmp_path / "out")


def test_a_registry_of_this_machine_is_asked_without_a_proxy(
    oci: OciDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oci.login, oci.scheme = f"robot:{PASSWORD}", "basic"
    with TunnelProxy() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        registry(oci, LOGIN).push(sealed_artifact(tmp_path))
    assert (TAG in oci.manifests, proxy.heads) == (True, [])


def test_a_login_that_is_wrong_or_missing_is_told(oci: OciDouble, tmp_path: Path) -> None:
    oci.login = "robot:another"
    artifact = sealed_artifact(tmp_path)
    fault = refused(lambda: registry(oci, LOGIN).push(artifact))
    assert fault.message == f"the registry {oci.address}'s service for tokens answered 401"
    assert fault.details == ("who is that",)
    assert "Set REPRO_GATE_REGISTRY_USER and REPRO_GATE_REGISTRY_PASSWORD" in fault.hint
    oci.scheme = "basic"
    assert "answered 401" in refused(lambda: registry(oci).push(artifact)).message
    half = {"REPRO_GATE_REGISTRY_USER": "robot"}
    told = refused(lambda: registry(oci, half).push(artifact)).message
    assert told == "REPRO_GATE_REGISTRY_PASSWORD is not set"


def test_the_file_of_docker_login_is_read(oci: OciDouble, tmp_path: Path) -> None:
    oci.login, oci.scheme = "robot:pass:word", "basic"
    folder = tmp_path / "docker"
    folder.mkdir()
    coded = "cm9ib3Q6cGFzczp3b3Jk"
    config = {"auths": {oci.address: {"auth": coded}}, "credsStore": "never-started"}
    (folder / "config.json").write_text(json.dumps(config))
    registry(oci, {"DOCKER_CONFIG": str(folder)}).push(sealed_artifact(tmp_path / "in"))
    assert TAG in oci.manifests


def test_the_registry_of_docker_has_a_host_and_a_login_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"auths": {"https://index.docker.io/v1/": {"auth": "cm9ib3Q6d29yZA=="}}}'
    )
    asked: list[str] = []

    def connect(name: str, base: str) -> Connection:
        asked.append(base)
        return Connection(name, base, AT_ONCE)

    def login(host: str) -> Login | None:
        found = registry_login(host, {"DOCKER_CONFIG": str(tmp_path)}, LocalFiles())
        assert found == Login.basic("robot", "word")
        assert "word" not in repr(found)
        return found

    with RegistryClient("docker.io/team/runs", login, connect):
        assert asked == ["https://registry-1.docker.io/v2/team/runs"]


def test_a_broken_file_of_docker_login_is_told(oci: OciDouble, tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    path = tmp_path / ".docker" / "config.json"
    for content, words in (
        (f'{{"auths": {{"{oci.address}": {{"auth": "!!"}}}}}}', "cannot be read"),
        ("{", "not valid JSON"),
    ):
        path.write_text(content)
        fault = refused(
            lambda: registry(oci, {"HOME": str(tmp_path)}).push(sealed_artifact(tmp_path / "in"))
        )
        assert words in fault.message


def test_the_service_for_tokens_must_not_be_spoken_with_in_the_clear(
    oci: OciDouble, tmp_path: Path
) -> None:
    oci.login, oci.tokens = f"robot:{PASSWORD}", "http://tokens.example.org/token"
    fault = refused(lambda: registry(oci, LOGIN).push(sealed_artifact(tmp_path)))
    assert "leads to http://tokens.example.org/token, which is not https" in fault.message


def test_an_upload_is_sent_nowhere_in_the_clear(oci: OciDouble, tmp_path: Path) -> None:
    act = status(202, Location="http://other.example.org/upload")
    oci.faults.append(Fault("POST", "/uploads/", act))
    fault = refused(lambda: pushed(oci, tmp_path))
    assert "leads to http://other.example.org/upload, which is not https" in fault.message


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (status(403, b'{"errors": [{"message": "no::right"}]}'), "answered 403"),
        (status(404), "answered 404"),
        (status(500), "answered 500"),
        (status(429, Retry_After="7"), "answered 429"),
        (status(429, Retry_After="100000"), "answered 429"),
    ],
)
def test_a_registry_that_refuses_a_push_is_named(
    oci: OciDouble, act: Callable[[Handler], None], words: str, tmp_path: Path
) -> None:
    oci.faults.append(Fault("POST", "/uploads/", act))
    fault = refused(lambda: pushed(oci, tmp_path))
    assert isinstance(fault, PublishError)
    assert fault.message == f"the registry {oci.address} {words}"
    assert fault.hint
    assert not oci.manifests


def short(handler: Handler) -> None:
    """A file that ends before its end."""
    handler.begin(200, Content_Length="9")
    handler.wfile.write(b"a")


def test_a_fault_that_passes_is_no_fault(oci: OciDouble, tmp_path: Path) -> None:
    oci.faults += [
        Fault("POST", "/uploads/", status(503), times=2),
        Fault("PUT", "/blobs/", status(500), times=1),
        Fault("PUT", "/manifests/", status(502), times=1),
        Fault("GET", "/blobs/", short, times=2),
    ]
    pushed(oci, tmp_path / "in")
    assert pulled(oci, tmp_path / "out").files[-1] == "package.tar"


def test_an_upload_that_is_taken_too_slowly_ends(oci: OciDouble, tmp_path: Path) -> None:
    ticks = itertools.count(0, 40.0)
    slow = replace(AT_ONCE, monotonic=lambda: next(ticks))
    artifact = sealed_artifact(tmp_path, package=b"x" * 1_000_000)
    fault = refused(lambda: registry(oci, policy=slow).push(artifact))
    assert "did not take the file within 64 s" in fault.message


def test_another_programs_referrers_stay(oci: OciDouble, tmp_path: Path) -> None:
    digest = pushed(oci, tmp_path / "in").reference.partition("@")[2]
    fallback = digest.replace(":", "-")
    other = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": f"sha256:{'1' * 64}",
        "size": 1,
        "artifactType": "application/x",
        "platform": {"os": "linux"},
    }
    altered(oci, fallback, manifests=[other])
    pushed(oci, tmp_path / "in", seal=b'{"again": 1}')
    rows = manifest_of(oci, fallback)["manifests"]
    assert rows[0] == other
    assert len(rows) == 2


@given(st.text(max_size=200))
def test_any_challenge_is_read_or_refused(header: str) -> None:
    found = read_challenge(header)
    assert found is None or found.scheme in {"basic", "bearer"}


def test_the_stronger_of_two_challenges_is_answered() -> None:
    found = read_challenge('Basic realm="a", Bearer realm="https://t.example",service="s"')
    assert found is not None
    assert (found.scheme, found.realm, found.service) == ("bearer", "https://t.example", "s")
    assert read_challenge("Bearer " + "x" * 5000) is None
    assert read_challenge("Negotiate abc") is None
