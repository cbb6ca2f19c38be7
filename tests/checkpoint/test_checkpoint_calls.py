"""Whatever a file calls or imports when it is loaded is part of its digest, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_digests import content_of, root_of
from each_row import each_row
from hostile_archives import HOOKS, Opcodes, archive, call, name, pickled, push, storage, tensor

from gate.errors import EvidenceError

PLACES = ("x_path", "log_dir", "time", "run_time", "timestamp", "version", "local_rank", "events")
REBUILD = name("torch._utils", "_rebuild_tensor_v2")
REFUSED = "refused"


def state(*pairs: tuple[str, object], before: bytes = b"", attributes: bytes = b"") -> Opcodes:
    items = b"".join(push(key) + push(value) for key, value in pairs)
    head = name("collections", "OrderedDict") + b")R" + attributes
    return Opcodes(before + head + b"(" + items + b"u")


def weight(*, hooks: object = HOOKS, location: object = "cpu") -> Opcodes:
    reference = ("storage", name("torch", "FloatStorage"), "0", location, 4)
    source = Opcodes(push(reference) + b"Q")
    return call(REBUILD, source, 0, (4,), (1,), False, hooks)


def places(made: Opcodes) -> dict[str, Opcodes]:
    """A state with something that it makes, in every place that no digest had to look at once."""
    one = ("w", tensor())
    hooks = Opcodes(HOOKS + push("k") + made + b"s")
    noted = Opcodes(b"}" + push("_metadata") + made + b"sb")
    versions = b"}" + push("_metadata") + b"}" + push("a") + b"}" + push("version") + made + b"ssb"
    plain = {place: state(one, (place, made)) for place in PLACES}
    order = push((3, "<", None, None, made, -1, -1, 0))
    scores = Opcodes(b"}" + push("c") + b"}" + push("best_k_models") + made + b"ss")
    return {
        **plain,
        "scores by path": state(one, ("callbacks", scores)),
        "a list of places": state(one, ("x_paths", Opcodes(b"]" + made + b"a"))),
        "hooks": state(("w", weight(hooks=hooks))),
        "the device": state(("w", weight(location=made))),
        "beside versions": state(one, attributes=noted),
        "a version": state(one, attributes=versions),
        "dropped": state(one, before=made + b"0"),
        "dropped with its group": state(one, before=b"(" + made + b"1"),
        "remembered": state(one, before=made + b"q\x090"),
        "a factory": Opcodes(call(name("collections", "defaultdict"), made) + push("w")
                             + tensor() + b"s"),
        "a type of numbers": state(one, ("n", Opcodes(
            call(name("numpy", "dtype"), "f4", False, True) + order + b"b"
        ))),
        "marks": state(("w", call(REBUILD, storage(), 0, (4,), (1,), False, HOOKS, made))),
    }  # fmt: skip


def found(folder: Path, opcodes: Opcodes) -> str:
    try:
        return root_of(archive(folder, pickled(opcodes)))
    except EvidenceError:
        return REFUSED


def run(command: str) -> Opcodes:
    return call(name("cProfile", "run"), command, "/dev/null")


@each_row("place", places(run("x")))
def test_a_call_is_seen_wherever_it_stands(tmp_path: Path, place: str) -> None:
    plain = root_of(archive(tmp_path, pickled(state(("w", tensor())))))
    roots = [found(tmp_path, places(run(command))[place]) for command in ("one", "other")]
    assert plain not in roots
    # neither is what it is given left out
    assert roots[0] == REFUSED or roots[0] != roots[1]


@each_row("place", places(name("evil", "thing")))
def test_a_name_that_is_imported_is_seen_wherever_it_stands(tmp_path: Path, place: str) -> None:
    plain = root_of(archive(tmp_path, pickled(state(("w", tensor())))))
    assert found(tmp_path, places(name("evil", "thing"))[place]) != plain


def test_what_is_made_and_dropped_is_told_as_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError) as refused:
        content_of(archive(tmp_path, pickled(state(before=run("x") + b"0"))))
    assert refused.value.message == (
        "bad.pt: uses 'cProfile.run' when it is loaded, for nothing that is part of the state"
    )
    assert refused.value.hint.startswith("This checkpoint may run code when it is loaded")


def test_a_note_names_what_loading_the_file_runs(tmp_path: Path) -> None:
    made = [(f"k{number}", call(name("m", f"f{number}"))) for number in range(7)]
    told = content_of(archive(tmp_path, pickled(state(*made)))).notes
    assert told == ("loading it runs code of 'm.f0', 'm.f1', 'm.f2', 'm.f3', 'm.f4' and 2 more",)


def test_places_times_and_parts_of_torch_need_no_note(tmp_path: Path) -> None:
    made = [
        ("x_path", call(name("pathlib", "PosixPath"), "a")),
        ("generator", call(name("torch._C", "Generator"))),
        ("number", call(name("builtins", "complex"), 1, 2)),
    ]
    assert content_of(archive(tmp_path, pickled(state(*made)))).notes == ()


def test_a_module_that_was_renamed_is_the_one_that_acts(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"calls 'commands\.getoutput' when it is loaded"):
        content_of(archive(tmp_path, pickled(call(name("commands", "getoutput"), "x"))))
