"""What lies in a package, recomputed; and a model file against it, as for a promotion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attestation_cases import member, pack_to
from gate_bench import FILES
from hostile_archives import Opcodes, archive, call, name, pickled, push, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_tensors import Stored, floats, write_state

from gate.checkpoint.digest import StateDigest, digest_state
from gate.errors import AttestationError
from gate.evidence.run_evidence import StateName, StateRoots
from gate.package.content import check_model, check_states
from gate.package.model_signing import ModelCheck, PartMatch
from gate.package.saved_states import open_package

MODEL = {"0.weight": floats(1.0, 2.0), "0.bias": floats(3.0), "2.weight": floats(4.0)}
KEPT = {"0/state/0/exp_avg": floats(0.5), "0/state/0/step": floats(7.0)}
CAPTURE = {f"model/{name}": one for name, one in MODEL.items()} | {
    f"optimizer/{name}": one for name, one in KEPT.items()
}
SETTINGS = (
    b"version: 1\ntrain: {command: python t.py, max_steps: 3, checkpoint: out/m.safetensors}\n"
)


def packed(folder: Path, capture: dict[str, Stored], saved: dict[str, Stored]) -> Path:
    """A package with both states; nothing in it is signed."""
    state, own = (
        write_state(folder / name, **tensors).read_bytes()
        for name, tensors in (("s", capture), ("m.safetensors", saved))
    )
    members = (
        member("checkpoint/state.safetensors", state),
        member("model/m.safetensors", own),
        member("repro-gate.yml", SETTINGS),
    )
    return pack_to(folder / "package.tar", *members).path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return packed(tmp_path, CAPTURE, MODEL)


def roots(package: Path) -> tuple[StateRoots, ...]:
    with open_package(FILES, package) as opened:
        captured = digest_state(opened.captured(), exclusions=())
        saved = digest_state(opened.saved(), exclusions=opened.saved_exclusions())
    return (
        _roots(StateName.CAPTURED, "checkpoint/state.safetensors", captured),
        _roots(StateName.SAVED, "model/m.safetensors", saved),
    )


def _roots(name: StateName, place: str, found: StateDigest) -> StateRoots:
    return StateRoots(
        name=name,
        member=place,
        algorithm=found.algorithm,
        root=found.roots.whole,
        parts=found.roots.parts,
    )


def checked(package: Path, folder: Path, **tensors: Stored) -> ModelCheck:
    return check_model(write_state(folder / "model.safetensors", **tensors), package, FILES)


def test_the_roots_of_both_states_are_recomputed(package: Path) -> None:
    assert check_states(package, roots(package), FILES) == tuple(StateName)


def test_a_state_that_is_not_packed_cannot_be(package: Path) -> None:
    captured, saved = roots(package)
    absent = saved.model_copy(update={"member": ""})
    assert check_states(package, (captured, absent), FILES) == (StateName.CAPTURED,)


@pytest.mark.parametrize("which", [0, 1])
def test_another_state_than_the_sealed_one_is_refused(
    package: Path, tmp_path: Path, which: int
) -> None:
    sealed = roots(package)
    other = {name: floats(9.0) for name in (CAPTURE, MODEL)[which]}
    (tmp_path / "other").mkdir()
    swapped = packed(tmp_path / "other", *((other, MODEL), (CAPTURE, other))[which])
    with pytest.raises(
        AttestationError, match=r"does not hold the .* state that was sealed"
    ) as raised:
        check_states(swapped, sealed, FILES)
    assert "model" in raised.value.message
    assert raised.value.details[0] == f"sealed: {sealed[which].root}"


def test_a_digest_of_another_kind_is_not_compared(package: Path) -> None:
    old = roots(package)[0].model_copy(update={"algorithm": "repro-gate-state/1"})
    with pytest.raises(AttestationError, match="this version makes repro-gate-state/2"):
        check_states(package, (old,), FILES)


def test_the_saved_file_itself_is_identical(package: Path, tmp_path: Path) -> None:
    found = checked(package, tmp_path, **MODEL)
    assert (found.identical, found.holds_the_model) == (True, True)
    assert [part.described for part in found.parts] == [
        "model: equal (3 tensors)",
        "optimizer: not in this file",
    ]


@given(st.sampled_from(["", "module.", "state_dict.", "a.b."]), st.permutations(list(MODEL)))
@settings(max_examples=20)
def test_names_may_stand_below_other_keys_and_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, before: str, order: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("model")
    package = packed(folder, CAPTURE, {"aside": floats(0.0)})
    tensors = {before + name: MODEL[name] for name in order}
    assert checked(package, folder, **tensors).holds_the_model


def capture_file(folder: Path, capture: dict[str, Stored]) -> Path:
    """As the harness writes it: names are paths."""
    path = write_state(folder / "capture.safetensors", **capture)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    text = json.dumps({"__metadata__": {"repro_gate_names": "paths"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return path


def test_a_whole_checkpoint_holds_the_optimizer_too(package: Path, tmp_path: Path) -> None:
    found = check_model(capture_file(tmp_path, CAPTURE), package, FILES)
    assert found.identical
    assert [part.answer for part in found.parts] == [PartMatch.EQUAL, PartMatch.EQUAL]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"0.bias": floats(3.5)}, "model: different, 2 of 3 tensors equal ('0.bias' differs)"),
        ({"0.bias": floats(3.0, dtype="F16")}, "2 of 3 tensors equal ('0.bias' differs)"),
        ({"0.bias": None}, "2 of 3 tensors equal ('0.bias' is missing)"),
        (
            {"9.weight": floats(1.0)},
            "3 of 3 tensors equal (1 tensor more than the sealed run had)",
        ),
    ],
)
def test_whatever_is_other_is_named(
    package: Path, tmp_path: Path, change: dict[str, Stored | None], words: str
) -> None:
    tensors = {name: one for name, one in {**MODEL, **change}.items() if one is not None}
    found = checked(package, tmp_path, **tensors)
    assert not found.holds_the_model
    assert found.parts[0].described.endswith(words)


def test_a_weight_that_is_missing_is_not_taken_for_a_tied_one(tmp_path: Path) -> None:
    """Two layers that begin with zeros are equal too."""
    weight = Stored("F32", (32, 32), bytes(4096))
    tied = {"a.w": weight, "b.w": weight, "c.w": floats(3.0)}
    package = packed(tmp_path, {f"model/{name}": one for name, one in tied.items()}, tied)
    once = {name: one for name, one in tied.items() if name != "b.w"}
    found = checked(package, tmp_path, **once)
    assert not found.holds_the_model
    assert found.parts[0].described == ("model: different, 2 of 3 tensors equal ('b.w' is missing)")
    # where the script itself saves it once, that is what is sealed
    assert checked(packed(tmp_path, {**CAPTURE}, once), tmp_path, **once).holds_the_model


def test_another_optimizer_is_not_the_sealed_one(package: Path, tmp_path: Path) -> None:
    moved = {**CAPTURE, "optimizer/0/state/0/exp_avg": floats(0.75)}
    found = check_model(capture_file(tmp_path, moved), package, FILES)
    assert found.parts[1].described == (
        "optimizer: different, 1 of 2 tensors equal (1 tensor more than the sealed run had)"
    )


def test_two_moments_that_changed_places_are_another_optimizer(
    package: Path, tmp_path: Path
) -> None:
    swapped = {
        **CAPTURE,
        "optimizer/0/state/0/exp_avg": floats(7.0),
        "optimizer/0/state/0/step": floats(0.5),
    }
    found = check_model(capture_file(tmp_path, swapped), package, FILES)
    assert found.parts[1].answer is PartMatch.DIFFERENT


@pytest.mark.parametrize("key", ["best", "config", "rng", "optimizer"])
def test_other_weights_beside_the_model_are_named(package: Path, tmp_path: Path, key: str) -> None:
    further = {f"{key}/{name}": floats(9.0) for name in MODEL}
    model = {f"model/{name}": one for name, one in MODEL.items()}
    found = check_model(capture_file(tmp_path, {**model, **further}), package, FILES)
    assert (found.has_the_weights, found.holds_the_model) == (True, False)
    names = "; ".join(f"tensor '/{key}/{name}'" for name in sorted(MODEL))
    assert found.beyond.described == names


WEIGHT, BIAS = tensor(0, (2,)), tensor(2, (2,))
WEIGHTS = {"weight": Stored("F32", (2,), b"01234567"), "bias": Stored("F32", (2,), b"89abcdef")}
CALL = call(name("timeit", "timeit"), "stop()")


def pairs(**values: object) -> Opcodes:
    """The opcodes of a dictionary."""
    items = (push(one) for pair in values.items() for one in pair)
    return Opcodes(b"}(" + b"".join(items) + b"u")


def pickled_file(folder: Path, **values: object) -> Path:
    """A file of `torch.save` with the sealed weights and more."""
    model = pairs(weight=WEIGHT, bias=BIAS)
    return archive(folder, pickled(pairs(model=model, **values)), shown="m.pt")


@pytest.fixture
def pickle_package(tmp_path: Path) -> Path:
    """A package whose capture has a second state, and whose script saves an object too."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    capture = {f"model/0/{name}": one for name, one in WEIGHTS.items()}
    state = write_state(folder / "s", **capture, **{"optimizer/0/state/0/step": floats(7.0)})
    saved = pickled_file(folder, args=call(name("argparse", "Namespace"), "sgd"), epoch=3)
    members = (
        member("checkpoint/state.safetensors", state.read_bytes()),
        member("model/m.pt", saved.read_bytes()),
        member("repro-gate.yml", SETTINGS.replace(b"m.safetensors", b"m.pt")),
    )
    return pack_to(folder / "package.tar", *members).path


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"extra": CALL}, "'/extra' calls 'timeit.timeit' when it is loaded; text '/extra/~argu"),
        # keys whose plain values no comparison of runs looks at
        ({"version": CALL}, "'/version' calls 'timeit.timeit' when it is loaded"),
        ({"log_dir": name("os", "system")}, "'/log_dir' imports 'os.system' when it is loaded"),
        ({"args": name("os", "system")}, "'/args' imports 'os.system' when it is loaded"),
        ({"args": call(name("argparse", "Namespace"), "adam")}, "text '/args/~arguments[0]', ano"),
        ({"args": call(name("argparse", "Namespace"), "sgd", 1)}, "int '/args/~arguments[1]'"),
        ({"best": pairs(weight=BIAS, bias=WEIGHT)}, "tensor '/best/bias'; tensor '/best/weight'"),
        ({"best": pairs(weight=WEIGHT, bias=BIAS)}, "tensor '/best/bias'; tensor '/best/weight'"),
        ({"net": pairs(weight_scale=2)}, "int '/net/weight_scale'"),
        ({"arch": "resnet"}, "text '/arch'"),
        ({"epoch": 4}, "int '/epoch', another than that of the sealed run"),
    ],
)
def test_the_sealed_weights_with_what_was_not_sealed_are_not_the_model(
    pickle_package: Path, tmp_path: Path, more: dict[str, object], words: str
) -> None:
    found = check_model(pickled_file(tmp_path, **more), pickle_package, FILES)
    assert not found.holds_the_model
    assert not found.identical
    assert found.beyond.described.startswith(words)


def test_what_was_sealed_may_be_there_and_plain_values_are_named(
    pickle_package: Path, tmp_path: Path
) -> None:
    args = call(name("argparse", "Namespace"), "sgd")
    same = check_model(pickled_file(tmp_path, args=args, epoch=3), pickle_package, FILES)
    assert (same.identical, same.holds_the_model, same.values.count) == (True, True, 0)
    some = pickled_file(tmp_path, args=args, step=9, lr=1, loss=2, last=4, log_dir="runs")
    found = check_model(some, pickle_package, FILES)
    assert (found.identical, found.holds_the_model) == (False, True)
    assert found.values.described == "int '/last'; text '/log_dir'; int '/loss'; and 2 more"
