"""What a registry gives is believed nothing: every byte is checked before it has a name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oci_double import INDEX, OciDouble
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
from web_double import Fault, Handler, WebDouble, cut, endless, status

from gate.errors import DocumentError, StorageError
from gate.publishing.registry import (
    MAX_MANIFEST_BYTES,
    SEALS_TYPE,
    read_manifest,
    read_manifest_index,
)


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


def test_a_redirect_to_no_address_is_told(oci: OciDouble, tmp_path: Path) -> None:
    pushed(oci, tmp_path / "in")
    oci.faults.append(Fault("GET", "/blobs/", status(302, Location="https://[::/\x1b[31m")))
    fault = refused(lambda: pulled(oci, tmp_path / "out"))
    # the log of a runner obeys two colons
    assert "leads to https://[: :/, which is not an address" in fault.message
    assert "\x1b" not in fault.message


def test_redirects_without_an_end_are_told(oci: OciDouble, tmp_path: Path) -> None:
    pushed(oci, tmp_path / "in")
    oci.faults.append(Fault("GET", "/manifests/", status(302, Location=f"{oci.url}/manifests/")))
    assert "redirects more than 5 times" in refused(lambda: pulled(oci, tmp_path / "out")).message


@pytest.mark.parametrize(
    ("part", "act", "words"),
    [
        ("/manifests/", cut, "closed the connection too early"),
        ("/manifests/", endless, f"sent more than {MAX_MANIFEST_BYTES:,} bytes"),
        ("/manifests/", status(200, b"[]"), "is not what was asked for"),
        ("/manifests/", status(200, b'{"a": 1, "a": 2}'), "not valid JSON"),
        ("/manifests/", status(200, b"[" * 10_000), "nest"),
        ("/blobs/", endless, "sent more than"),
        ("/blobs/", status(200, b"{"), "closed the connection too early"),
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"artifactType": "application/x"}, "not a package of repro-gate"),
        ({"layers": []}, "not a package of repro-gate"),
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
    assert "lists a file among the seals that is not a seal" in fault.message
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


def test_of_several_sets_of_seals_the_last_is_taken_and_that_is_told(
    either: OciDouble, tmp_path: Path
) -> None:
    pushed(either, tmp_path / "in")
    pushed(either, tmp_path / "again", seal=b'{"later": 1}')
    found = pulled(either, tmp_path / "out")
    assert (tmp_path / "out" / "package.dsse.json").read_bytes() == b'{"later": 1}'
    (note,) = found.notes
    assert note.startswith("There are 2 sets of seals; this is sha256:")


@given(st.binary(max_size=300) | st.from_regex(rb'\{"[a-z]+": .*\}', fullmatch=True))
def test_any_bytes_are_a_manifest_or_refused(content: bytes) -> None:
    for read in (read_manifest, read_manifest_index):
        with suppress(DocumentError):
            read(content)


def test_a_copy_of_the_list_may_have_lost_its_types(oci: OciDouble, tmp_path: Path) -> None:
    digest = pushed(oci, tmp_path / "in").reference.partition("@")[2]
    tag = digest.replace(":", "-")
    rows = [
        {name: row[name] for name in ("mediaType", "digest", "size")}
        for row in manifest_of(oci, tag)["manifests"]
    ]
    altered(oci, tag, manifests=rows)
    assert "package.dsse.json" in pulled(oci, tmp_path / "out").files


def test_a_registry_that_has_learned_to_keep_lists_still_gives_the_old_seals(
    oci: OciDouble, tmp_path: Path
) -> None:
    pushed(oci, tmp_path / "in")
    oci.keeps_referrers = True
    empty = {"schemaVersion": 2, "mediaType": INDEX, "manifests": []}
    act = status(200, json.dumps(empty).encode(), Content_Type=INDEX)
    oci.faults.append(Fault("GET", "/referrers/", act))
    assert "package.dsse.json" in pulled(oci, tmp_path / "out").files


def test_what_refers_to_a_package_and_is_no_seal_of_it_is_passed_over(
    either: OciDouble, tmp_path: Path
) -> None:
    digest = pushed(either, tmp_path / "in").reference.partition("@")[2]
    seals = next(json.loads(one) for one in either.manifests.values() if b"subject" in one)
    seals["subject"]["digest"] = f"sha256:{'0' * 64}"
    other = json.dumps(seals).encode()
    name = f"sha256:{hashlib.sha256(other).hexdigest()}"
    either.manifests[name] = other
    either.types[name] = "application/vnd.oci.image.manifest.v1+json"
    tag = digest.replace(":", "-")
    row = {"mediaType": "a/b", "digest": name, "size": len(other), "artifactType": SEALS_TYPE}
    if tag in either.manifests:
        altered(either, tag, manifests=[*manifest_of(either, tag)["manifests"], row])
    assert pulled(either, tmp_path / "out").notes == ()
