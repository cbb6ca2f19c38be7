"""The model's own signature: which files, in which order, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from attestation_cases import gate_key
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import AttestationError
from gate.package.envelope import read_envelope
from gate.package.keys import KeyFile, generate_private_key, public_pem
from gate.package.model_signing import (
    ModelFolder,
    check_model_statement,
    model_folder,
    sign_model,
    write_model_statement,
)
from gate.package.seal_records import KeyAlgorithm, SealFile
from gate.text.json_text import canonical_json

FOLDER = ModelFolder(name="model", files=(("a/b", "1" * 64), ("c", "2" * 64)))
MEMBERS = (("model/c", "2" * 64), ("verdict.json", "3" * 64), ("model/a/b", "1" * 64))


def _refusal(payload: bytes, folder: ModelFolder | None = FOLDER) -> str:
    with pytest.raises(AttestationError) as caught:
        check_model_statement(payload, folder)
    assert caught.value.hint
    return str(caught.value)


def test_what_the_script_saved_goes_before_what_was_captured() -> None:
    captured = ("checkpoint/state.safetensors", "4" * 64)
    assert model_folder((*MEMBERS, captured)) == FOLDER
    assert model_folder((captured,)) == ModelFolder(
        name="checkpoint", files=(("state.safetensors", "4" * 64),)
    )
    assert model_folder((("verdict.json", "3" * 64), ("modelling/x", "1" * 64))) is None


def test_files_are_sorted_as_paths_are_compared() -> None:
    members = [(f"model/{name}", "1" * 64) for name in ("a.b", "a/b", "a", "B", "a b/c")]
    folder = model_folder(members)
    assert folder is not None
    assert [name for name, _ in folder.files] == ["B", "a", "a/b", "a b/c", "a.b"]


def test_it_is_what_model_signing_writes() -> None:
    value = json.loads(write_model_statement(FOLDER))
    raw = bytes.fromhex("1" * 64 + "2" * 64)
    assert value == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "model", "digest": {"sha256": hashlib.sha256(raw).hexdigest()}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [],
            },
            "resources": [
                {"name": "a/b", "algorithm": "sha256", "digest": "1" * 64},
                {"name": "c", "algorithm": "sha256", "digest": "2" * 64},
            ],
        },
    }


def test_the_bundle_names_the_key_as_model_signing_asks() -> None:
    content = sign_model(FOLDER, KeyFile(gate_key()))
    assert content is not None
    value = json.loads(content)
    pem = public_pem(gate_key().public_key())
    assert value["verificationMaterial"] == {
        "publicKey": {"hint": hashlib.sha256(pem).hexdigest()},
        "tlogEntries": [],
    }
    envelope = read_envelope(SealFile(name="package.model.sig", content=content))
    assert envelope.payload == write_model_statement(FOLDER)


def test_an_ed25519_key_signs_no_model() -> None:
    assert sign_model(FOLDER, KeyFile(generate_private_key(KeyAlgorithm.ED25519))) is None


REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "a path that is ignored": (
        lambda value: value["predicate"]["serialization"]["ignore_paths"].append(".github"),
        "predicate.serialization.ignore_paths",
    ),
    "links": (
        lambda value: value["predicate"]["serialization"].update(allow_symlinks=True),
        "predicate.serialization.allow_symlinks: must be False",
    ),
    "another hash": (
        lambda value: value["predicate"]["serialization"].update(hash_type="blake2"),
        "must be 'sha256'",
    ),
    "shards": (
        lambda value: value["predicate"]["serialization"].update(method="shards"),
        "must be 'files'",
    ),
    "a file less": (
        lambda value: value["predicate"]["resources"].pop(),
        "model/c is in the package, and the model's signature does not list it",
    ),
    "a file more": (
        lambda value: value["predicate"]["resources"].append(
            {"name": "d", "algorithm": "sha256", "digest": "1" * 64}
        ),
        "model/d is listed by the model's signature, and the package does not hold it",
    ),
    "another file": (
        lambda value: value["predicate"]["resources"][0].update(digest="5" * 64),
        "model/a/b is not the file that the model's signature lists",
    ),
    "another order": (
        lambda value: value["predicate"]["resources"].reverse(),
        "is not about the folder model of this package",
    ),
    "a file twice": (
        lambda value: value["predicate"]["resources"].append(value["predicate"]["resources"][0]),
        "is not about the folder model of this package",
    ),
    "another folder": (
        lambda value: value["subject"][0].update(name="checkpoint"),
        "is not about the folder model of this package",
    ),
    "another root": (
        lambda value: value["subject"][0]["digest"].update(sha256="1" * 64),
        "is not about the folder model of this package",
    ),
    "an unknown key": (lambda value: value.update(x=1), "x: is not a known key"),
}


@each_row("name", REFUSED)
def test_another_list_is_refused(name: str) -> None:
    change, message = REFUSED[name]
    value = json.loads(write_model_statement(FOLDER))
    change(value)
    assert message in _refusal(canonical_json(value))


def test_a_package_without_a_model_has_no_signature_of_one() -> None:
    assert "the package holds no model" in _refusal(write_model_statement(FOLDER), None)


@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8),
        st.binary(min_size=32, max_size=32).map(bytes.hex),
        min_size=1,
        max_size=8,
    )
)
def test_any_folder_agrees_with_its_own_signature_alone(files: dict[str, str]) -> None:
    folder = model_folder((f"model/{name}", digest) for name, digest in files.items())
    assert folder is not None
    check_model_statement(write_model_statement(folder), folder)
    _refusal(write_model_statement(folder), FOLDER)
