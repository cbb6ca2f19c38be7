"""Which packages and images are named without a version or a digest."""

from __future__ import annotations

from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.audit.repository_lines import unpinned_images, wish_list

CONDA = b"dependencies: [python=3.11, numpy, {pip: [torch==2.13.0, tqdm]}]"


@each_row(
    ("name", "text", "unpinned"),
    [
        ("requirements.txt", b"numpy>=1\ntorch==2.13.0 ; x\n# c\n-r more.txt\n", ("numpy",)),
        ("requirements.txt", b"a==1 --hash=sha256:00\nb==1.*\nc===2\n", ("b",)),
        ("requirements.txt", b"a @ https://x/a.whl#sha256=00\nb @ git+https://x@main", ("b",)),
        ("requirements.txt", b"a @ git+https://x@" + b"0" * 40 + b"\nb @ git+https://x@0", ("b",)),
        ("pyproject.toml", b"[project]\ndependencies = ['a[x]>=1', 'b==1']", ("a",)),
        ("environment.yml", CONDA, ("numpy", "tqdm")),
    ],
)
def test_packages_without_one_version_are_named(
    name: str, text: bytes, unpinned: tuple[str, ...]
) -> None:
    found = wish_list(name, text)
    assert found is not None
    assert found.unpinned == unpinned


@each_row(
    ("name", "text"),
    [
        ("requirements.txt", b"# nothing\n"),
        ("requirements.txt", b"\xff\xfe"),
        ("pyproject.toml", b"[project]\ndependencies = 7"),
        ("pyproject.toml", b"[" * 100_000),
        ("environment.yml", b"!!python/object:os.system x"),
        ("environment.yml", b"dependencies: 7"),
    ],
)
def test_what_asks_for_nothing_or_cannot_be_read_is_no_list(name: str, text: bytes) -> None:
    assert wish_list(name, text) is None


def test_an_image_counts_as_pinned_by_its_digest_alone() -> None:
    text = b"FROM python:3.11 AS base\nFROM --platform=x a@sha256:00\nFROM base\nFROM ${X}\nfrom b"
    assert unpinned_images(text) == ("python:3.11", "b")


@given(
    st.sampled_from(["requirements.txt", "pyproject.toml", "environment.yml"]),
    st.binary(max_size=200),
)
def test_no_bytes_make_the_reader_fail(name: str, text: bytes) -> None:
    found = wish_list(name, text)
    assert found is None or found.packages >= len(found.unpinned)
    unpinned_images(text)
