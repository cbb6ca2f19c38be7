"""Lists what head changes in settings, baseline and keys, compared with the base commit.

The lists are informational. Both sides are parsed strictly and shortened, only in the confined
process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from gate.baseline.entry import MAX_ENTRY_BYTES, BaselineEntry
from gate.checkpoint.digest import captured_digest
from gate.errors import DocumentError, GateError
from gate.package.seal_records import TrustedKeys
from gate.settings.load import parse_settings
from gate.settings.policy_change import MAX_SHOWN, PolicyChange
from gate.text.digests import sha256_hex
from gate.text.documents import read_document
from gate.text.json_text import canonical_json, canonical_sha256
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import masked

MAX_CHANGES = 200
MAX_ADDRESS = 200
# the lists in a trusted root, with a name for one element
SERVICES: Mapping[str, str] = MappingProxyType(
    {
        "tlogs": "log",
        "certificateAuthorities": "certificate authority",
        "ctlogs": "log of certificates",
        "timestampAuthorities": "timestamp authority",
    }
)
ROOT_HINT = "It is the JSON document that signing.trusted_root names."
Facts = Mapping[str, str]


def settings_changes(
    file: str, before: bytes | None, after: bytes | None
) -> tuple[PolicyChange, ...]:
    """Return the keys of `repro-gate.yml` whose values differ; defaults count as values."""
    return _changes(file, before, after, lambda data: dict(_flat(_settings(data, file))))


def baseline_changes(
    folder: str, before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> tuple[PolicyChange, ...]:
    """Return added, removed and changed entries, each by the name of its file."""
    changes = [
        change
        for name in sorted({*before, *after})
        for change in _of_entry(folder, name, before.get(name), after.get(name))
    ]
    if len(changes) > MAX_CHANGES:
        more = _change(folder, f"and {len(changes) - MAX_CHANGES:,} more", "", "")
        return (*changes[:MAX_CHANGES], more)
    return tuple(changes)


def _of_entry(
    folder: str, name: str, before: bytes | None, after: bytes | None
) -> tuple[PolicyChange, ...]:
    """Return an entry's changes, with its name in front: the policy file is the folder."""
    changes = _changes(f"{folder}/{name}", before, after, lambda data: dict(_entry(data, name)))
    entry = name.removesuffix(".json")
    return tuple(
        _change(folder, f"{entry}: {change.what}", change.before, change.after)
        for change in changes
    )


def key_changes(file: str, before: bytes | None, after: bytes | None) -> tuple[PolicyChange, ...]:
    """Return keys that were added, removed, replaced under their id, or given another status."""
    return _changes(file, before, after, lambda data: dict(_keys(data, file)))


def root_changes(file: str, before: bytes | None, after: bytes | None) -> tuple[PolicyChange, ...]:
    """Return authorities and logs added to or removed from a trusted root.

    A service with another key counts as another service.
    """
    return _changes(file, before, after, lambda data: dict(_services(data, file)))


def _changes(
    file: str,
    before: bytes | None,
    after: bytes | None,
    facts: Callable[[bytes], Facts],
) -> tuple[PolicyChange, ...]:
    if before == after:
        return ()
    try:
        old, new = (facts(data) if data is not None else {} for data in (before, after))
    except GateError as fault:
        whole = ("there", "gone") if after is None else ("", f"cannot be read: {fault.message}")
        return (_change(file, "the whole file", *whole),)
    # compare parsed facts, so that writing out a default is no change
    names = [name for name in sorted({*old, *new}) if old.get(name, "") != new.get(name, "")]
    changes = [
        _change(file, name, old.get(name, ""), new.get(name, "")) for name in names[:MAX_CHANGES]
    ]
    if len(names) > MAX_CHANGES:
        changes.append(_change(file, f"and {len(names) - MAX_CHANGES:,} more", "", ""))
    # the bytes differ but no fact does: a comment, the order or white space
    return tuple(changes) or (_change(file, "formatting only", "", ""),)


def _change(file: str, what: str, before: str, after: str) -> PolicyChange:
    texts = {"file": file, "what": what, "before": before, "after": after}
    return PolicyChange.model_validate({name: _cut(text) for name, text in texts.items()})


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def _settings(data: bytes, file: str) -> object:
    return parse_settings(data, file).model_dump(mode="json")


def _flat(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield values under dotted keys; a list is one value, because its order matters."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _entry(data: bytes, name: str) -> Iterator[tuple[str, str]]:
    entry = read_document(BaselineEntry, data, name, max_bytes=MAX_ENTRY_BYTES)
    yield "entry", "there"
    yield "recorded from", entry.commit
    yield "reason", entry.reason
    yield "checkpoint digest", captured_digest(entry.checkpoint.tensors)
    # this digest covers every rank and the script's own files, so that no change goes unseen
    yield "digest of all states", entry.checkpoint.root
    if entry.checkpoint.sketches:
        # sketches bound how far a later result may move, so a change of them is shown too
        yield "sketches of weights", canonical_sha256(entry.checkpoint.sketches)
    for series in entry.metrics:
        last = series.points[-1].decimal if series.points else "no value"
        # the last value alone would hide a change of earlier steps
        digest = canonical_sha256(series.model_dump())
        yield series.name, f"last {last}, series {digest[:12]}"


def _keys(data: bytes, file: str) -> Iterator[tuple[str, str]]:
    for key in read_document(TrustedKeys, data, file).keys:
        yield f"key {key.key_id}", key.status.value
        yield f"key {key.key_id}: public key", key.raw_bytes
        yield f"key {key.key_id}: comment", key.comment
        # a later date would make seals valid that were not
        yield f"key {key.key_id}: retired at", key.retired_at or ""
        yield f"key {key.key_id}: revoked at", key.revoked_at or ""
        yield f"key {key.key_id}: reason", key.reason


def _services(data: bytes, file: str) -> Iterator[tuple[str, str]]:
    """Yield each service of Sigstore's `TrustedRoot`, by address and digest of its content."""
    root = parse_json(data, file)
    if not isinstance(root, dict):
        raise DocumentError(f"{file}: not a trusted root", hint=ROOT_HINT)
    for name, value in root.items():
        services = value if name in SERVICES else None
        if not isinstance(services, list):
            yield from _flat(value, name)
            continue
        for service in services:
            address = _address(service)
            digest = sha256_hex(canonical_json(service))
            # a renewed service keeps its address; only the digest shows that its keys changed
            yield f"{SERVICES[name]} {address} ({digest[:12]})".replace("  ", " "), "trusted"


def _address(service: object) -> str:
    fields = service if isinstance(service, dict) else {}
    address = fields.get("baseUrl") or fields.get("uri")
    return masked(address)[:MAX_ADDRESS] if isinstance(address, str) else ""
