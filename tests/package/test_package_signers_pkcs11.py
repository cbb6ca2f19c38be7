"""A key in a PKCS#11 token, for real: Debian's softhsm2, used by the gate as an HSM would be."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from attestation_cases import CREATED_AT

from gate.errors import AttestationError, SettingsError
from gate.package.envelope import sign, verify
from gate.package.keys import public_key, trusted_key
from gate.package.pkcs11 import TokenSigner
from gate.package.seal_records import PAYLOAD_TYPE, TrustedKeys
from gate.package.signers import check_place, refuse_programs_below
from gate.settings.signer_places import TokenPlace, read_signer_place
from gate.system.files.files import LocalFiles

MODULE = next(
    (
        path
        for path in ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so")
        if Path(path).exists()
    ),
    "",
)
PIN = "CANARY-987654"
FILES = LocalFiles()
TOOLS = ("softhsm2-util", "pkcs11-tool")
pytest.importorskip("pkcs11")
needs_softhsm = pytest.mark.skipif(
    not MODULE or not all(map(shutil.which, TOOLS)), reason="no softhsm2 and opensc here"
)


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """A token of this test's own with three keys, and the variables that lead to it."""
    folder = tmp_path_factory.mktemp("softhsm")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder}/tokens\n")
    found = {**os.environ, "SOFTHSM2_CONF": str(folder / "softhsm2.conf")}

    def call(*words: str) -> None:
        subprocess.run(words, env=found, check=True, capture_output=True)

    call(
        "softhsm2-util", "--init-token", "--free", "--label", "gate", "--so-pin", PIN, "--pin", PIN
    )
    for number, (label, kind) in enumerate(
        (
            ("seal", "prime256v1"),
            ("ed", "edwards25519"),
            ("wide", "secp384r1"),
            ("twin", "prime256v1"),
            ("twin", "prime256v1"),
        )
    ):
        tool = ("pkcs11-tool", "--module", MODULE, "--token-label", "gate", "--login", "--pin", PIN)
        call(
            *tool,
            "--keypairgen",
            "--key-type",
            f"EC:{kind}",
            "--label",
            label,
            "--id",
            f"0{number}",
        )
    return {**found, "REPRO_GATE_PKCS11_PIN": PIN}


def place_of(key: str, more: str = "", module: str = MODULE) -> TokenPlace:
    place = read_signer_place(f"pkcs11:token=gate;{key}?module-path={module}{more}")
    assert isinstance(place, TokenPlace)
    return place


def fault_of(key: str, variables: Mapping[str, str], seconds: float = 60) -> AttestationError:
    with pytest.raises(AttestationError) as caught:
        sign(b"{}", PAYLOAD_TYPE, TokenSigner(place_of(key), FILES, variables, seconds=seconds))
    assert PIN not in str(caught.value)
    assert caught.value.hint
    return caught.value


@needs_softhsm
@pytest.mark.parametrize("key", ["object=seal", "object=ed", "id=%01", "object=seal;id=%00"])
def test_the_token_signs_and_the_key_that_it_shows_verifies(
    variables: Mapping[str, str], key: str
) -> None:
    signer = TokenSigner(place_of(key), FILES, variables)
    envelope = sign(b"x" * 300_000, PAYLOAD_TYPE, signer)
    entry = trusted_key(public_key(signer.public_key(), "the token"), added_at=CREATED_AT)
    assert verify(envelope, TrustedKeys(keys=(entry,))) == entry


@needs_softhsm
def test_the_pin_comes_from_a_file_too(variables: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "pin").write_text(f"{PIN}\n")
    without = {name: each for name, each in variables.items() if name != "REPRO_GATE_PKCS11_PIN"}
    place = place_of("object=seal", f"&pin-source={tmp_path}/pin")
    sign(b"{}", PAYLOAD_TYPE, TokenSigner(place, FILES, without))


@needs_softhsm
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("object=missing", "the token cannot be used: there is no such private key"),
        ("object=seal;id=%09", "there is no such private key"),
        ("object=twin", "2 of these are a private key: twin, twin"),
        ("object=seal;serial=1", "there is no such token"),
        ("object=wide", "neither an ECDSA key on P-256 nor an Ed25519 key"),
    ],
)
def test_a_key_that_is_not_there_or_of_another_kind_is_told(
    variables: Mapping[str, str], key: str, message: str
) -> None:
    assert message in fault_of(key, variables).message


@needs_softhsm
def test_a_wrong_pin_is_told_and_not_repeated(variables: Mapping[str, str]) -> None:
    fault = fault_of("object=seal", {**variables, "REPRO_GATE_PKCS11_PIN": "CANARY-1"})
    assert fault.message == "the token cannot be used: the PIN is wrong"
    assert "REPRO_GATE_PKCS11_PIN" in fault.hint


def test_a_library_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "not.so").write_text("text")
    place = place_of("object=a", module=str(tmp_path / "not.so"))
    signer = TokenSigner(place, FILES, {**os.environ, "REPRO_GATE_PKCS11_PIN": PIN})
    with pytest.raises(AttestationError, match="the token cannot be used: the library reports"):
        signer.public_key()


@needs_softhsm
def test_a_library_that_hangs_is_given_up(variables: Mapping[str, str]) -> None:
    assert "gave no answer within 0.01 s" in fault_of("object=seal", variables, 0.01).message


def test_no_pin_no_library_and_no_file_are_told_without_reading_anything(tmp_path: Path) -> None:
    module = tmp_path / "hsm.so"
    open_to_all = tmp_path / "open.so"
    module.write_text("")
    open_to_all.write_text("")
    open_to_all.chmod(0o666)
    cases = (
        (place_of("object=a", module="/nowhere/hsm.so"), "there is no library /nowhere/hsm.so"),
        (place_of("object=a", module=str(open_to_all)), "others can change the library"),
        (place_of("object=a", module=str(module)), "there is no PIN"),
        (place_of("object=a", "&pin-source=/nowhere/pin", str(module)), "no file at pin-source"),
    )
    for place, message in cases:
        with pytest.raises(SettingsError, match=message):
            check_place(place, FILES, {})
    with pytest.raises(SettingsError, match="is in the checkout"):
        refuse_programs_below(tmp_path, cases[1][0], {})
