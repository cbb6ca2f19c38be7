"""`repro-gate digest` and `repro-gate diff`, as a person calls them."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run
from harness_folder import safetensors_bytes
from played_training import Project
from saved_tensors import Stored, floats, raw, write_state

from gate.checkpoint.digest import digest_state
from gate.checkpoint.formats.formats import open_state
from gate.package.packing import pack
from gate.package.seal_records import PackageMember
from gate.system.files.files import LocalFiles

HEAVY = ("typer", "pydantic", "numpy", "torch", "rich", "jinja2")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return write_state(tmp_path / "state", weight=floats(1, 2), counts=raw("I64", 3))


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    return write_state(tmp_path / "moved", weight=floats(1, 2.5), counts=raw("I64", 3))


def _root(path: Path) -> str:
    with open_state(LocalFiles(), path, "state", max_bytes=10**6) as content:
        return digest_state(content).roots.whole


def test_digest_prints_algorithm_roots_and_leaves(state: Path, run: Run) -> None:
    ended = run("digest", state, "--leaves")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[:4] == [
        "algorithm    repro-gate-state/2",
        "hash         sha256",
        "format       safetensors",
        f"root         {_root(state)}",
    ]
    assert re.fullmatch("  model      [0-9a-f]{64}  2 leaves", lines[4])
    assert lines[-1].endswith("  F32[2]  /weight")


def test_digest_as_json_has_a_version_and_every_leaf(state: Path, run: Run) -> None:
    document = json.loads(run("digest", state, "--json", "--leaves").out)
    assert document["schema_version"] == "repro-gate.digest/1"
    assert document["root"] == _root(state)
    assert document["counts"]["model"] == 2
    leaf = document["leaves"][1]
    assert (leaf["path"], leaf["kind"], leaf["shape"], leaf["size_bytes"]) == (
        "/weight",
        "F32",
        [2],
        8,
    )


def test_weights_alone_are_not_complete_in_words_and_as_json(state: Path, run: Run) -> None:
    ended = run("digest", state, "--complete")
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert "complete     no" in lines
    assert [line.split()[-1] for line in lines if line.startswith("  optimizer  ")][1:] == [
        "missing"
    ]
    ended = run("digest", state, "--complete", "--json")
    assert ended.code == 1
    resume = json.loads(ended.out)["resume"]
    assert resume["complete"] is False
    states = {row["part"]: row["state"] for row in resume["parts"]}
    assert (states["model"], states["optimizer"], states["scheduler"]) == (
        *("saved", "missing", "not saved"),
    )


def test_all_that_every_training_needs_is_complete(tmp_path: Path, run: Run) -> None:
    moments = {"w.x": floats(1), "optimizer.state.w.x.exp_avg": floats(0), "step": raw("I64", 3)}
    path = write_state(tmp_path / "whole", **moments, rng=Stored("U8", (5056,), bytes(5056)))
    ended = run("digest", path, "--complete")
    assert (ended.code, "complete     yes" in ended.out.splitlines()) == (0, True), ended.out


def test_an_exclusion_of_the_caller_is_told_with_its_reason(
    state: Path, moved: Path, run: Run
) -> None:
    rule = "/wei*=known to move"
    ended = run("digest", state, "--exclude", rule)
    assert "left out     1 leaf by /wei*: known to move\n" in ended.out
    ended = run("diff", state, moved, "--exclude", rule)
    assert ended.code == 0
    assert "Left out: /wei* (known to move), 1 in A and 1 in B" in ended.out


def test_an_exclusion_without_a_reason_is_wrong_usage(state: Path, run: Run) -> None:
    ended = run("digest", state, "--exclude", "/wei*")
    assert ended.code == 2
    assert "--exclude '/wei*' needs a pattern and a reason\nhint: For example:" in ended.err


@pytest.mark.parametrize("verb", ["digest", "diff"])
def test_a_broken_file_is_an_error_with_a_hint(verb: str, state: Path, run: Run) -> None:
    state.write_bytes(state.read_bytes()[:-1])
    ended = run(verb, *([state] * (1 if verb == "digest" else 2)))
    assert ended.code == 3
    assert f"error: {state}: tensors cover 16 bytes, the file holds 15\nhint: " in ended.err


def test_equal_states_end_with_0(state: Path, run: Run) -> None:
    ended = run("diff", state, state)
    assert ended.code == 0
    assert ended.out.startswith("Equal bit for bit: 2 tensors and 0 values\nA: ")


def test_a_difference_ends_with_1_and_shows_the_numbers(state: Path, moved: Path, run: Run) -> None:
    ended = run("diff", state, moved)
    assert ended.code == 1
    assert ended.out.startswith("1 leaf differs, equal: 1 tensor and 0 values\n")
    assert "Tensors whose numbers differ (1), worst first" in ended.out
    row = next(line for line in ended.out.splitlines() if "/weight F32[2]" in line)
    assert row.split() == ["/weight", "F32[2]", "1", "0.5", "0.186", "0", "far", "apart"]
    assert max(map(len, ended.out.splitlines())) <= 80


def test_a_difference_as_json_has_every_figure(state: Path, moved: Path, run: Run) -> None:
    document = json.loads(run("diff", state, moved, "--json").out)
    assert document["schema_version"] == "repro-gate.difference/1"
    (leaf,) = document["differences"]
    assert {**leaf, "relative_l2": None} == {
        "path": "/weight",
        "part": "model",
        "parameter": None,
        "change": "changed",
        "a": "F32[2]",
        "b": "F32[2]",
        "elements": 2,
        "differing": 1,
        "first_index": [1],
        "max_absolute": 0.5,
        "max_relative": 0.2,
        "relative_l2": None,
        "ulp_50": 0,
        "ulp_90": 2097152,
        "ulp_99": 2097152,
        "ulp_max": 2097152,
        "not_numbers": [0, 0],
        "infinities": [0, 0],
    }


def test_the_page_stands_alone_and_escapes_names(tmp_path: Path, run: Run) -> None:
    one = write_state(tmp_path / "one", **{"<script>": floats(1), "same": floats(1)})
    other = write_state(tmp_path / "other", **{"<script>": floats(2), "same": floats(1)})
    run("diff", one, other, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "/~4script&gt;" in page
    assert "@media screen and (prefers-color-scheme: dark)" in page
    assert "<h1>1 leaf differs, equal: 1 tensor and 0 values</h1>" in page


def test_limit_cuts_the_table_and_counts_the_rest(tmp_path: Path, run: Run) -> None:
    names = [f"t{number}" for number in range(5)]
    one = write_state(tmp_path / "one", **dict.fromkeys(names, floats(1)))
    other = write_state(tmp_path / "other", **dict.fromkeys(names, floats(2)))
    ended = run("diff", one, other, "--limit", "2")
    assert "and 3 more" in ended.out
    assert run("diff", one, other, "--limit", "0").code == 2


def test_two_packages_are_compared_by_the_states_that_they_hold(project: Project, run: Run) -> None:
    assert run("gate", "-q", "--out", "first").code == 1
    ended = run("diff", "first/package.tar", "first/package.tar")
    assert ended.code == 0
    assert "A: first/package.tar (package of repro-gate)" in ended.out
    assert "whose seal was not checked" in " ".join(ended.out.split())
    project.play(losses=["0.5", "0.25", "0.125"])
    run("gate", "-q", "--out", "second", "--allow-dirty")
    assert run("digest", "second/package.tar").code == 0


def _package(path: Path, names: object, momentum: float) -> Path:
    state = safetensors_bytes(
        {
            "model/0/head.bias": ("F32", [1], bytes(4)),
            "optimizer/0/state/3/exp_avg": ("F32", [1], struct.pack("<f", momentum)),
        }
    )
    run = json.dumps({"parameter_names": names}).encode()
    members = (
        PackageMember(name="checkpoint/state.safetensors", content=state),
        PackageMember(name="evidence/strict-1/evidence.json", content=run),
    )
    with path.open("wb") as target:
        pack(members, path=path, target=target, files=LocalFiles())
    return path


@pytest.mark.parametrize(
    ("leaf", "shown"),
    [
        ("state/model/0/head.bias", "/optimizer/0/state/3/exp_avg (head.bias)"),
        # what names no leaf of the state is text that somebody put there
        ("state/model/0/<b>", "/optimizer/0/state/3/exp_avg"),
        (7, "/optimizer/0/state/3/exp_avg"),
    ],
)
def test_packages_call_the_state_of_an_optimizer_by_its_parameter(
    tmp_path: Path, run: Run, leaf: object, shown: str
) -> None:
    names = {"state/optimizer/0/state/3": leaf}
    sides = [_package(tmp_path / f"{side}.tar", names, side) for side in (1, 2)]
    ended = run("diff", *sides, "--html", tmp_path / "page.html")
    assert f"<code>{shown}</code>" in (tmp_path / "page.html").read_text()
    assert ("(head.bias)" in ended.out.replace("\n", "")) == shown.endswith("(head.bias)")
    (found,) = json.loads(run("diff", *sides, "--json").out)["differences"]
    assert found["parameter"] == ("head.bias" if shown.endswith(")") else None)


def test_names_that_two_packages_do_not_agree_on_are_left_out(tmp_path: Path, run: Run) -> None:
    place = "state/optimizer/0/state/3"
    one = _package(tmp_path / "one.tar", {place: "state/model/0/head.bias"}, 1)
    broken = _package(tmp_path / "broken.tar", "none", 2)
    (found,) = json.loads(run("diff", one, broken, "--json").out)["differences"]
    assert found["parameter"] == "head.bias"
    other = _package(tmp_path / "other.tar", {place: f"{place}/exp_avg"}, 2)
    (found,) = json.loads(run("diff", one, other, "--json").out)["differences"]
    assert found["parameter"] is None


def test_a_damaged_package_is_an_error_and_no_difference(
    tmp_path: Path, state: Path, run: Run
) -> None:
    package = tmp_path / "package.tar"
    package.write_bytes(bytes(257) + b"ustar\x0000" + bytes(247))
    ended = run("diff", package, state)
    assert ended.code == 3
    assert f"error: {package}: the package holds something that is not a regular file" in ended.err


def test_a_package_that_was_cut_off_has_no_digest_wherever_it_was_cut(
    tmp_path: Path, run: Run
) -> None:
    package = _package(tmp_path / "package.tar", {}, 1)
    whole = package.read_bytes()
    assert run("digest", package).code == 0
    # the state is the first member, so all of it is there in each of these
    ends = len(whole.rstrip(b"\0"))
    for size in (ends // 512 * 512, ends - 1, ends // 2):
        package.write_bytes(whole[:size])
        assert run("digest", package).err == (
            f"error: {package}: the package is truncated\n"
            "hint: The file was cut off; fetch it again.\n"
        )


def test_a_file_that_is_empty_or_not_there_is_called_so(tmp_path: Path, run: Run) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert f"error: {empty}: is empty\n" in run("digest", empty).err
    assert run("digest", "none").err == (
        "error: none: cannot be read: reading none failed: No such file or directory\n"
        "hint: Check the path; something else may have removed it.\n"
    )


def test_a_hostile_name_says_nothing_to_the_terminal(tmp_path: Path, run: Run) -> None:
    path = write_state(tmp_path / "state", **{"::error::x##[group]": floats(1)})
    shown = run("digest", path, "--leaves").out
    assert "::" not in shown
    assert "##[" not in shown


@pytest.mark.parametrize("words", [["digest"], ["diff", "--json"]])
def test_quick_verbs_import_nothing_slow(words: list[str], state: Path) -> None:
    paths = [str(state)] * (1 if words[0] == "digest" else 2)
    code = (
        f"import sys; from gate.cli import _run\ntry: _run({[*words, *paths]!r})\n"
        f"except SystemExit: pass\nsys.exit(' '.join({set(HEAVY)!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "\n"


def test_help_lists_every_verb_and_a_mistyped_one_is_corrected(run: Run) -> None:
    shown = run("--help").out
    verbs = re.findall(r"^  ([a-z]+)  ", shown.partition("Start:")[2], re.MULTILINE)
    assert {"gate", "baseline", "digest", "diff", "verify", "schema"} <= set(verbs)
    assert "action" not in verbs
    assert "Did you mean 'diff'?" in run("dif").err


def test_each_quick_verb_explains_itself_with_an_example(run: Run) -> None:
    assert "Example: repro-gate digest checkpoint.pt --leaves" in run("digest", "--help").out
    assert "Example: repro-gate diff before.pt after.pt" in run("diff", "--help").out


def test_the_digest_of_equal_bytes_under_another_name_is_equal(
    tmp_path: Path, state: Path, run: Run
) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(state.read_bytes())
    assert run("digest", copy).out == run("digest", state).out
    assert hashlib.sha256(copy.read_bytes()).hexdigest() not in run("digest", copy).out


def test_a_value_type_is_named_where_it_changes(tmp_path: Path, run: Run) -> None:
    one = write_state(tmp_path / "one", a=floats(1))
    other = write_state(tmp_path / "other", a=Stored("F64", (1,), bytes(8)))
    shown = " ".join(run("diff", one, other).out.split())
    assert "/a different type F32[1] F64[1]" in shown


def test_a_file_that_nobody_understands_is_refused_or_taken_by_its_bytes(
    tmp_path: Path, run: Run
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"neither this")
    second.write_bytes(b"nor that.   ")
    refused = run("digest", first)
    assert refused.code == 3
    assert "has an unknown format" in refused.err
    taken = run("digest", first, "--unknown", "bytes", "--leaves")
    assert taken.code == 0
    assert "its format is unknown, so its bytes were compared as they are" in taken.out
    assert taken.out.splitlines()[-1].strip().endswith("RAW[12]")
    assert run("diff", first, first, "--unknown", "bytes").code == 0
    assert run("diff", first, second, "--unknown", "bytes").code == 1


def test_folders_are_compared_like_files(tmp_path: Path, run: Run) -> None:
    for name, value in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        write_state(tmp_path / name / "model.safetensors", weight=floats(1, value))
        (tmp_path / name / "trainer_state.json").write_text('{"global_step": 3}', "utf-8")
    ended = run("diff", tmp_path / "one", tmp_path / "two")
    assert ended.code == 1
    assert "/model/weight" in ended.out
    assert run("diff", tmp_path / "one", tmp_path / "one").code == 0
