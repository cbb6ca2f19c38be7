"""A sealed package goes to a registry and comes back, byte for byte; what breaks has its words."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from github_client import AT_ONCE
from hypothesis import given
from hypothesis import strategies as st
from oci_double import OciDouble
from sealed_files import COMMIT, sealed_artifact
from web_double import Fault, Handler, WebDouble, cut, endless, silent, status

from gate.adapters.files.files import LocalFiles
from gate.adapters.github.retry import RetryPolicy
from gate.adapters.registry.challenge import read_challenge
from gate.adapters.registry.manifests import MAX_MANIFEST_BYTES
from gate.adapters.registry.registry import OciRegistry, commit_tag
from gate.errors import GateError, PublishError, StorageError
from gate.records.published.artifact import Pulled, Pushed, WantedPackage

FILES = LocalFiles()
TAG = f"commit-{COMMIT}"
PASSWORD = "hush-hush"
LOGIN = {"REPRO_GATE_REGISTRY_USER": "robot", "REPRO_GATE_REGISTRY_PASSWORD": PASSWORD}
WANTED = WantedPackage(commit=COMMIT, gate_id="default", digest="", max_bytes=10**6)


@pytest.fixture(params=[False, True], ids=["tag", "referrers"])
def either(request: pytest.FixtureRequest) -> Iterator[OciDouble]:
    with OciDouble(keeps_referrers=request.param) as server:
        yield server


@pytest.fixture
def oci() -> Iterator[OciDouble]:
    with OciDouble() as server:
        yield server


def registry(
    server: WebDouble, variables: Mapping[str, str] | None = None, policy: RetryPolicy = AT_ONCE
) -> OciRegistry:
    return OciRegistry(f"{server.address}/team/runs", variables or {}, FILES, policy)


def pushed(
    server: OciDouble, folder: Path, package: bytes = b"a package", seal: bytes = b"{}"
) -> Pushed:
    return registry(server).push(sealed_artifact(folder, package, seal=seal))


def pulled(server: WebDouble, out: Path, wanted: WantedPackage = WANTED) -> Pulled:
    return registry(server).pull(wanted, out)


def refused(act: Callable[[], object]) -> GateError:
    with pytest.raises(GateError) as caught:
        act()
    assert PASSWORD not in str(caught.value)
    return caught.value


def manifest_of(server: OciDouble, reference: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.manifests[reference])
    return found


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
        f"{TAG} names an earlier package of this commit and still does; this one is {second.tag}.",
    )
    assert pulled(either, tmp_path / "by-tag").reference == first.reference
    by_digest = replace(WANTED, digest=digest)
    assert pulled(either, tmp_path / "by-digest", by_digest).reference == second.reference
    assert (tmp_path / "by-digest" / "package.tar").read_bytes() == b"another"


def test_each_gate_of_a_repository_has_a_tag() -> None:
    assert commit_tag(COMMIT, "language-model") == f"{TAG}-language-model"


def test_of_several_sets_of_seals_the_last_is_taken_and_that_is_told(
    either: OciDouble, tmp_path: Path
) -> None:
    pushed(either, tmp_path / "in")
    pushed(either, tmp_path / "again", seal=b'{"later": 1}')
    found = pulled(either, tmp_path / "out")
    assert (tmp_path / "out" / "package.dsse.json").read_bytes() == b'{"later": 1}'
    (note,) = found.notes
    assert note.startswith("There are 2 sets of seals; this is sha256:")


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


def test_a_redirect_to_another_host_gets_no_credential(oci: OciDouble, tmp_path: Path) -> None:
    oci.login, oci.scheme = f"robot:{PASSWORD}", "basic"
    registry(oci, LOGIN).push(sealed_artifact(tmp_path / "in", package=b"elsewhere"))
    with WebDouble() as storage:
        storage.faults.append(Fault("GET", "/blob", status(200, b"elsewhere")))
        package = (tmp_path / "in" / "package.tar").read_bytes()
        digest = next(name for name, content in oci.blobs.items() if content == package)
        oci.faults.append(Fault("GET", digest, status(307, Location=f"{storage.url}/blob")))
        registry(oci, LOGIN).pull(WANTED, tmp_path / "out")
        assert [one.authorization for one in storage.asked] == [""]
    assert (tmp_path / "out" / "package.tar").read_bytes() == b"elsewhere"


@pytest.mark.parametrize("location", ["http://other.example.org/x", "file:///etc/passwd"])
def test_a_redirect_out_of_tls_is_not_followed(
    oci: OciDouble, location: str, tmp_path: Path
) -> None:
    pushed(oci, tmp_path / "in")
    oci.faults.append(Fault("GET", "/blobs/", status(302, Location=location)))
    assert "which is not https" in refused(lambda: pulled(oci, tmp_path / "out")).message
    assert not list((tmp_path / "out").glob("**/*"))


def test_an_upload_is_sent_nowhere_in_the_clear(oci: OciDouble, tmp_path: Path) -> None:
    act = status(202, Location="http://other.example.org/upload")
    oci.faults.append(Fault("POST", "/uploads/", act))
    fault = refused(lambda: pushed(oci, tmp_path))
    assert "leads to http://other.example.org/upload, which is not https" in fault.message


def test_redirects_without_an_end_are_told(oci: OciDouble, tmp_path: Path) -> None:
    pushed(oci, tmp_path / "in")
    oci.faults.append(Fault("GET", "/manifests/", status(302, Location=f"{oci.url}/manifests/")))
    assert "redirects more than 5 times" in refused(lambda: pulled(oci, tmp_path / "out")).message


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


def test_a_registry_that_is_not_there_is_told(tmp_path: Path) -> None:
    with OciDouble() as server:
        pass
    fault = refused(lambda: pushed(server, tmp_path))
    assert fault.message == f"the registry {server.address} cannot be reached"


def test_silence_ends(oci: OciDouble, tmp_path: Path) -> None:
    released = threading.Event()
    oci.faults.append(Fault("HEAD", "/blobs/", silent(released)))
    hasty = replace(AT_ONCE, timeout_seconds=0.2)
    fault = refused(lambda: registry(oci, policy=hasty).push(sealed_artifact(tmp_path)))
    released.set()
    assert "did not answer within 0.2 s" in fault.message


def test_an_upload_that_is_taken_too_slowly_ends(oci: OciDouble, tmp_path: Path) -> None:
    ticks = itertools.count(0, 40.0)
    slow = replace(AT_ONCE, monotonic=lambda: next(ticks))
    artifact = sealed_artifact(tmp_path, package=b"x" * 1_000_000)
    fault = refused(lambda: registry(oci, policy=slow).push(artifact))
    assert "did not take the file within 64 s" in fault.message


@pytest.mark.parametrize(
    ("part", "act", "words"),
    [
        ("/manifests/", cut, "broke its answer off"),
        ("/manifests/", endless, f"sent more than {MAX_MANIFEST_BYTES:,} bytes"),
        ("/manifests/", status(200, b"[]"), "is not what was asked for"),
        ("/manifests/", status(200, b'{"a": 1, "a": 2}'), "not valid JSON"),
        ("/manifests/", status(200, b"[" * 10_000), "nest"),
        ("/blobs/", endless, "sent more than"),
        ("/blobs/", status(200, b"{"), "broke its answer off"),
        ("/blobs/", status(200, b"other!!!!"), "sent more than 2 bytes"),
        ("/blobs/", status(200, b"{]"), "gave other bytes than sha256:"),
        ("/blobs/", status(500), "answered 500"),
        ("/blobs/", status(404), "answered 404"),
    ],
)
def test_nothing_wrong_is_kept(
    oci: OciDouble, part: str, act: Callable[[Handler], None], words: str, tmp_path: Path
) -> None:
    pushed(oci, tmp_path / "in")
    oci.faults.append(Fault("GET", part, act))
    fault = refused(lambda: pulled(oci, tmp_path / "out"))
    assert words in fault.message
    assert fault.hint
    assert not [path for path in (tmp_path / "out").glob("*") if path.is_file()]


def altered(server: OciDouble, reference: str, **changes: object) -> None:
    """Another manifest under a tag: whoever may push can do that."""
    content = json.dumps(manifest_of(server, reference) | changes).encode()
    server.manifests[reference] = content


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"artifactType": "application/x"}, "no package of repro-gate"),
        ({"layers": []}, "no package of repro-gate"),
        ({"annotations": {}}, "gave the package of another commit"),
        ({"layers": [{"mediaType": "a", "digest": "sha256:../..", "size": 1}]}, "not what was"),
        ({"schemaVersion": 1}, "is not what was asked for"),
    ],
)
def test_a_tag_that_names_something_else_is_refused(
    oci: OciDouble, changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    pushed(oci, tmp_path / "in")
    altered(oci, TAG, **changes)
    assert words in refused(lambda: pulled(oci, tmp_path / "out")).message
    assert not (tmp_path / "out").exists()


def test_bytes_under_another_digest_are_refused(oci: OciDouble, tmp_path: Path) -> None:
    digest = pushed(oci, tmp_path / "in").reference.partition("@")[2]
    altered(oci, digest, annotations={"org.opencontainers.image.revision": COMMIT})
    wanted = replace(WANTED, digest=digest)
    fault = refused(lambda: pulled(oci, tmp_path / "out", wanted))
    assert f"gave other bytes than {digest[:19]}… names" in fault.message


@pytest.mark.parametrize(
    "name",
    ["../../.bashrc", "/etc/cron.d/x", "package.tar", "verdict.json", "", "package.dsse.json\n"],
)
def test_a_seal_has_a_name_of_a_seal(oci: OciDouble, name: str, tmp_path: Path) -> None:
    artifact = sealed_artifact(tmp_path / "in")
    renamed = replace(artifact.seals[0], name=name)
    registry(oci).push(replace(artifact, seals=(renamed,)))
    fault = refused(lambda: pulled(oci, tmp_path / "out"))
    assert "lists a file among the seals that is none" in fault.message
    assert not (tmp_path / "out").exists()


def test_a_package_without_seals_is_told(either: OciDouble, tmp_path: Path) -> None:
    digest = pushed(either, tmp_path / "in").reference.partition("@")[2]
    either.manifests = {name: either.manifests[name] for name in (TAG, digest)}
    fault = refused(lambda: pulled(either, tmp_path / "out"))
    assert fault.message == f"{either.address}/team/runs has the package, and no seal of it"


def test_a_package_that_is_too_large_is_not_begun(oci: OciDouble, tmp_path: Path) -> None:
    pushed(oci, tmp_path / "in")
    wanted = replace(WANTED, max_bytes=8)
    fault = refused(lambda: pulled(oci, tmp_path / "out", wanted))
    assert fault.message == "the package has 9 bytes, the limit is 8"


def test_nothing_that_is_there_is_replaced(oci: OciDouble, tmp_path: Path) -> None:
    pushed(oci, tmp_path / "in")
    out = tmp_path / "out"
    out.mkdir()
    (out / "package.sigstore.json").symlink_to(tmp_path / "elsewhere")
    fault = refused(lambda: pulled(oci, out))
    assert isinstance(fault, StorageError)
    assert "package.sigstore.json is there already" in fault.message
    assert not (tmp_path / "elsewhere").exists()
    assert len(list(out.iterdir())) == 1


def test_a_commit_that_is_not_there_is_told(oci: OciDouble, tmp_path: Path) -> None:
    fault = refused(lambda: pulled(oci, tmp_path))
    assert fault.message == f"{oci.address}/team/runs has no {TAG}"
    assert "Only a sealed pass is published" in fault.hint


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
