from __future__ import annotations

import hashlib
from importlib.util import find_spec

import pytest

from gate.checkpoint.hashing.hashes import named_hash
from gate.errors import SettingsError


def test_the_default_is_the_standard_librarys_own() -> None:
    assert named_hash("sha256") is hashlib.sha256


def test_a_hash_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(SettingsError, match="there is no hash named 'md5' here") as caught:
        named_hash("md5")
    assert caught.value.hint == "Take one of sha256, blake3."


@pytest.mark.skipif(find_spec("blake3") is not None, reason="blake3 is installed here")
def test_a_hash_that_is_not_installed_is_told_with_a_package_that_exists() -> None:
    with pytest.raises(SettingsError, match="the package blake3 is not installed") as caught:
        named_hash("blake3")
    assert caught.value.hint == "Install it beside the gate: pip install blake3"
