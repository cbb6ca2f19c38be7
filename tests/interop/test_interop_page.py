"""The table of docs/verification.md: every tool, and no cell that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from attestation_cases import FILES
from interop import ACCEPTED, NOT_SEEN, PAGE, REFUSED, table, with_table
from interop_scenes import Fault, Scene, scenes
from interop_tools import CannotBeHadError, Tools, output
from interop_verifiers import verifiers

from gate.errors import AttestationError
from gate.package.keys import read_trusted_keys
from gate.package.seal_files import find_seals
from gate.package.seal_records import Expected, KeyAlgorithm
from gate.package.verify import verify_package

TOOLS = Tools(
    openssl=None,
    cosign=None,
    model_signing=None,
    python=None,
    node_modules=None,
    versions=("OpenSSL 3.0",),
    missing=("cosign: no network",),
)


def _rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    start = next(place for place, row in enumerate(rows) if row[0] == "tool")
    return rows[start + 2 :]


def test_the_page_tells_of_every_tool_and_that_each_sees_what_it_can() -> None:
    rows = _rows()
    tools = {row[0] for row in rows}
    assert {"cosign", "@sigstore/verify", "securesystemslib", "model-signing"} <= tools
    for tool, _, _, good, *bad in rows:
        assert good == ACCEPTED, tool
        assert set(bad) <= {REFUSED, NOT_SEEN}, tool


def test_what_cannot_be_had_is_told_and_has_no_row() -> None:
    assert [each.tool for each in verifiers(TOOLS)] == ["repro-gate verify"]
    text = table([("openssl", "all", "P-256", *[ACCEPTED] * 6)], TOOLS)
    assert "Not tried, as it cannot be had here: cosign: no network." in text
    assert with_table(with_table(PAGE.read_text("utf-8"), text), text).count(text) == 1


def test_a_page_without_its_marks_is_told() -> None:
    with pytest.raises(SystemExit, match="has no place for the table"):
        with_table("# Verification\n", "x")


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(CannotBeHadError, match="No such file"):
        output(("/no/such/program",))


def test_each_scene_has_its_fault_and_the_gate_sees_it(tmp_path: Path) -> None:
    made = scenes(tmp_path, KeyAlgorithm.ECDSA_P256)
    assert len({_content(scene) for scene in made.values()}) == len(Fault)
    assert [fault for fault, scene in made.items() if _accepted(scene)] == [Fault.NONE]


def _content(scene: Scene) -> bytes:
    names = ("package.tar", "package.model.sig", "key.pem")
    return b"".join((scene.folder / name).read_bytes() for name in names)


def _accepted(scene: Scene) -> bool:
    trusted = read_trusted_keys((scene.folder / "trusted-keys.json").read_bytes(), "trust")
    seals, about = find_seals(scene.package, FILES), Expected(commit=scene.commit)
    try:
        verify_package(scene.package, seals, trusted, about, FILES)
    except AttestationError:
        return False
    return True
