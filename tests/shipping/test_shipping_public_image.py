"""What a release asks of the registry: whether a runner without a login gets the images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_registry import FakeRegistry, registry
from public_image import MAX_BYTES, ImageError, public_platforms

BOTH = ("linux/amd64", "linux/arm64")


@pytest.fixture(name="here")
def _here(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with registry() as made:
        yield made


def test_a_public_image_tells_its_platforms(here: FakeRegistry) -> None:
    image = here.put("team/repro-gate", BOTH)
    assert public_platforms(image) == set(BOTH)
    # without a login, then with the token that everybody gets
    assert [path.partition("?")[0] for path in here.asked] == [
        f"/v2/team/repro-gate/manifests/{image.partition('@')[2]}",
        "/token",
        f"/v2/team/repro-gate/manifests/{image.partition('@')[2]}",
    ]


def test_a_private_image_is_told_with_what_to_do(here: FakeRegistry) -> None:
    image = here.put("team/repro-gate", BOTH)
    here.private.add("team/repro-gate")
    with pytest.raises(ImageError, match="is not public: its registry answers 403") as told:
        public_platforms(image)
    assert str(told.value).endswith("take Package settings, Change visibility, Public")


def test_an_image_that_is_not_there_is_not_public(here: FakeRegistry) -> None:
    with pytest.raises(ImageError, match="is not public: its registry answers 404"):
        public_platforms(f"{here.address}/team/other@sha256:{'0' * 64}")


def test_an_image_for_one_platform_names_none(here: FakeRegistry) -> None:
    assert public_platforms(here.put("team/repro-gate", ())) == frozenset()


def test_other_bytes_than_the_digests_are_refused(here: FakeRegistry) -> None:
    image = here.put("team/repro-gate", BOTH)
    (path,) = here.manifests
    here.manifests[path] += b" "
    with pytest.raises(ImageError, match="answers with another manifest than"):
        public_platforms(image)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ((500, b""), "answers 500: try again"),
        ((200, b"x" * (MAX_BYTES + 1)), "answers with more than"),
        ((200, b"{}"), "answers with another manifest"),
    ],
)
def test_a_registry_that_fails_is_no_private_image(
    here: FakeRegistry, broken: tuple[int, bytes], said: str
) -> None:
    image = here.put("team/repro-gate", BOTH)
    here.broken = broken
    with pytest.raises(ImageError, match=said):
        public_platforms(image)


@pytest.mark.parametrize("challenge", ['Basic realm="login"', 'Bearer realm="file:///etc/passwd"'])
def test_nothing_but_a_token_is_asked_for(here: FakeRegistry, challenge: str) -> None:
    image = here.put("team/repro-gate", BOTH)
    here.challenge = challenge
    with pytest.raises(ImageError, match="asks for a login and not for a token"):
        public_platforms(image)
    assert len(here.asked) == 1


def test_a_registry_that_nobody_runs_is_told(here: FakeRegistry) -> None:
    image = here.put("team/repro-gate", BOTH)
    gone = image.replace(here.address, "127.0.0.1:1")
    with pytest.raises(ImageError, match=r"does not answer \(.*\): try again"):
        public_platforms(gone)


@pytest.mark.parametrize("image", ["", "repro-gate@sha256:0", f"repro-gate@sha256:{'0' * 64}"])
def test_a_name_without_registry_or_digest_is_refused(image: str) -> None:
    with pytest.raises(ImageError, match="is no image by digest: registry/name@sha256"):
        public_platforms(image)
