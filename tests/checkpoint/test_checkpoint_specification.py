"""Holds docs/digest.md, its words in `specified_digest`, and the program together."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from checkpoint_digests import content_of
from each_row import each_row
from harness_folder import safetensors_bytes
from hostile_archives import HOOKS, Opcodes, archive, call, name, pickled, push, storage
from specified_digest import (
    CHUNK,
    Plain,
    kind_and_bytes,
    leaf_digest,
    leaves,
    part_root,
    sha256,
    whole_root,
)

from gate.checkpoint.parts import (
    DEFAULT_EXCLUSIONS,
    MODEL_WORDS,
    PARTS,
    PROGRESS_WORDS,
    RANDOM_WORDS,
    SETTINGS_WORDS,
    SURROUNDING_WORDS,
)
from gate.checkpoint.tensor_hashing import ALGORITHM

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "digest.md").read_text("utf-8")
STATE = {
    "model": {"layer.weight": Plain("F32", (1, 2), struct.pack("<2f", 1, 2)), "seen": 300},
    "optimizer": {
        "state": {0: {"step": Plain("F32", (), struct.pack("<f", 1))}},
        "param_groups": [{"lr": 0.5, "params": [0]}],
    },
    "rng": b"\x00\x01",
    "epoch": -1,
    "note": "ä",
}
PART_OF = {"model": "model", "optimizer": "optimizer", "rng": "random"}


def example_rows() -> list[tuple[str, ...]]:
    """Path, part, kind, shape, bytes and digest of each leaf, as the page shows them."""
    rows = []
    for path, value in leaves(STATE):
        part = PART_OF.get(path.split("/")[1], "other")
        if isinstance(value, Plain):
            shape = " by ".join(map(str, value.shape)) or "scalar"
            kind, data = value.dtype, value.data
        else:
            shape, (kind_bytes, data) = "", kind_and_bytes(value)
            kind = kind_bytes.decode()
        rows.append((path, part, kind, shape, data.hex(), leaf_digest(value).hex()))
    return sorted(rows, key=lambda row: row[0].encode())


def example_roots() -> dict[str, bytes]:
    rows = example_rows()
    parts = {
        part: part_root(part, {row[0]: bytes.fromhex(row[5]) for row in rows if row[1] == part})
        for part in ("model", "optimizer", "other", "random")
    }
    return {**parts, "whole": whole_root(parts)}


def example_lines() -> list[str]:
    """The lines of the page that show digests."""
    lines = [
        f"| `{path}` | {part} | {kind} | {shape} | `{data}` | `{leaf}` |"
        for path, part, kind, shape, data, leaf in example_rows()
    ]
    roots = [f"| {name} | `{root.hex()}` |" for name, root in example_roots().items()]
    return [*lines, "", "and these roots:", "", "| root | |", "|---|---|", *roots]


def opcodes(value: object) -> Opcodes:
    """The example as a pickle."""
    if isinstance(value, Plain):
        key = "0" if value.shape else "1"
        elements = len(value.data) // 4
        rebuild = name("torch._utils", "_rebuild_tensor_v2")
        strides = tuple([value.shape[1], 1] if value.shape else [])
        return call(rebuild, storage(key, elements), 0, value.shape, strides, False, HOOKS)
    if isinstance(value, dict):
        items = b"".join(opcodes(key) + opcodes(item) for key, item in value.items())
        return Opcodes(b"}(" + items + b"u")
    if isinstance(value, list):
        return Opcodes(b"](" + b"".join(map(opcodes, value)) + b"e")
    if isinstance(value, bytes):
        return Opcodes(b"C" + bytes([len(value)]) + value)
    if isinstance(value, float):
        return Opcodes(b"G" + struct.pack(">d", value))
    return push(value)


def test_the_page_shows_what_its_words_give() -> None:
    assert "\n".join(example_lines()) in PAGE


def test_the_program_gives_what_the_page_shows(tmp_path: Path) -> None:
    state = {**STATE, "log_dir": "runs"}
    records = {"bad/data/0": struct.pack("<2f", 1, 2), "bad/data/1": struct.pack("<f", 1)}
    found = content_of(archive(tmp_path, pickled(opcodes(state)), records))
    assert [(leaf.path, leaf.part, leaf.kind, leaf.digest.hex()) for leaf in found.leaves] == [
        (path, part, kind, digest) for path, part, kind, _, _, digest in example_rows()
    ]
    roots = {part: bytes.fromhex(root) for part, root in found.roots.parts.items()}
    assert {**roots, "whole": bytes.fromhex(found.roots.whole)} == example_roots()
    assert sum(rule.leaves for rule in found.excluded) == 1


def test_a_tensor_of_two_chunks(tmp_path: Path) -> None:
    data = bytes(CHUNK + 1)
    path = tmp_path / "large.safetensors"
    path.write_bytes(safetensors_bytes({"w": ("U8", [CHUNK + 1], data)}))
    leaf = leaf_digest(Plain("U8", (CHUNK + 1,), data))
    assert content_of(path).leaves[0].digest == leaf
    for shown in (leaf, sha256(bytes(CHUNK)), sha256(b"\0")):
        assert f"`{shown.hex()}`" in PAGE


@each_row("words", [SETTINGS_WORDS, SURROUNDING_WORDS, RANDOM_WORDS, MODEL_WORDS, PROGRESS_WORDS])
def test_the_page_lists_the_words_that_tell_a_part(words: frozenset[str]) -> None:
    assert re.search(rf"\| {', '.join(sorted(words))}[ ,]", PAGE)


def test_the_page_names_every_part_and_exclusion() -> None:
    assert f"`{ALGORITHM}`" in PAGE
    assert all(f"`{part}`" in PAGE for part in PARTS)
    rules = [rule for rule in DEFAULT_EXCLUSIONS if rule.kinds is not None]
    names = {rule.pattern.removeprefix("**/").partition("[")[0] for rule in rules}
    assert all(f"`{name}`" in PAGE for name in names if not name.endswith(("/~**", "/**")))
