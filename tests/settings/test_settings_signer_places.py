"""How a person names a key: each way is understood, each mistake has its own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import SettingsError
from gate.settings.signer_places import (
    CommandPlace,
    FilePlace,
    TokenPlace,
    VaultPlace,
    read_signer_place,
)

MODULE = "module-path=/usr/lib/hsm.so"


@each_row("text", ["key.pem", "/keys/gate.pem", "keys/my:key.pem", "C:key", "./vault:a"])
def test_anything_without_a_kind_is_a_path(text: str) -> None:
    assert read_signer_place(text) == FilePlace(path=Path(text))


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("exec:sign-with-kms", ("sign-with-kms",)),
        ("exec:/opt/sign --key 'a b'", ("/opt/sign", "--key", "a b")),
    ],
)
def test_a_command_is_split_as_a_shell_would_and_run_by_none(
    text: str, argv: tuple[str, ...]
) -> None:
    assert read_signer_place(text) == CommandPlace(argv=argv)


def test_a_vaults_key_has_a_mount_of_any_depth_and_perhaps_a_version() -> None:
    assert read_signer_place("vault:transit/gate") == VaultPlace(
        mount="transit", key="gate", version=None
    )
    assert read_signer_place("vault:team/ml/transit/gate#12") == VaultPlace(
        mount="team/ml/transit", key="gate", version=12
    )


def test_a_token_is_named_as_rfc_7512_does() -> None:
    text = f"pkcs11:token=The%20Gate;object=k%C3%A9y;id=%00%ff;serial=12?{MODULE}"
    assert read_signer_place(f"{text}&pin-source=file:/run/pin") == TokenPlace(
        module=Path("/usr/lib/hsm.so"),
        token="The Gate",
        serial="12",
        key_label="kéy",
        key_id=b"\x00\xff",
        pin_source=Path("/run/pin"),
    )


@pytest.mark.parametrize("source", ["/run/pin", "file:/run/pin", "file:///run/pin"])
def test_a_pins_file_is_named_in_each_usual_way(source: str) -> None:
    place = read_signer_place(f"pkcs11:object=gate?{MODULE}&pin-source={source}")
    assert isinstance(place, TokenPlace)
    assert place.pin_source == Path("/run/pin")


@each_row(
    ("text", "message"),
    [
        ("", "the signer is named by an empty text"),
        ("a\nb", "the signer is not one line"),
        ("a" * 4097, "the signer is not one line"),
        ("awskms:///alias/gate", "awskms: is not a kind of signer"),
        ("https://vault.example", "https: is not a kind of signer"),
        ("hashivault://gate", "hashivault: is not a kind of signer"),
        ("exec:", "exec: names no command"),
        ("exec:''", "exec: names no command"),
        ("exec:sign 'a", "a quotation mark of the command is not closed"),
        ("exec:./sign", "exec: ./sign is a relative path"),
        ("exec:scripts/sign", "exec: scripts/sign is a relative path"),
        ("vault:gate", "vault:gate does not name a key"),
        ("vault:transit/", "vault:transit/ does not name a key"),
        ("vault:transit/gate#0", "does not name a key"),
        ("vault:transit/gate#latest", "does not name a key"),
        ("vault:transit/../sys/gate", "does not name a key"),
        ("vault:transit/..", "does not name a key"),
        ("vault:transit/gate?x=1", "does not name a key"),
        ("vault://transit/gate", "does not name a key"),
        ("vault:transit/g%61te", "does not name a key"),
        (f"pkcs11:token=a?{MODULE}", "names no key"),
        ("pkcs11:object=a", "module-path is not the full path"),
        ("pkcs11:object=a?module-path=hsm.so", "module-path is not the full path"),
        ("pkcs11:object=a?module-path=/a%00b", "module-path is not the full path"),
        ("pkcs11:object=a?module-path=/%ff", "module-path is not UTF-8"),
        (f"pkcs11:object=a;object=b?{MODULE}", "object is given twice"),
        (f"pkcs11:object=a;slot-id=1?{MODULE}", "'slot-id' is not known here"),
        (f"pkcs11:object?{MODULE}", "'object' is not known here"),
        (f"pkcs11:object=%ff?{MODULE}", "object is not UTF-8"),
        (f"pkcs11:object=a;type=cert?{MODULE}", "type is not private"),
        (f"pkcs11:object=a?{MODULE}&pin-source=|ask", "pin-source is not the full path"),
    ],
)
def test_a_mistake_is_told(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_signer_place(text)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"pkcs11:object=a?{MODULE}&pin-value=CANARY", "would show the PIN to every process"),
        ("-----BEGIN PRIVATE KEY-----\nCANARY", "by its place, not by the key itself"),
        ("vault:x -----BEGIN CANARY", "by its place, not by the key itself"),
    ],
)
def test_a_secret_that_was_given_by_mistake_is_refused_and_not_repeated(
    text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        read_signer_place(text)
    assert "CANARY" not in str(caught.value)


@given(st.sampled_from(["", "exec:", "vault:", "pkcs11:", "pkcs11:object=a?"]), st.text())
def test_any_text_is_a_place_or_a_fault_that_can_be_printed(kind: str, text: str) -> None:
    faults = []
    try:
        read_signer_place(kind + text)
    except SettingsError as fault:
        faults.append(fault.message)
    assert all(message.isprintable() for message in faults)
