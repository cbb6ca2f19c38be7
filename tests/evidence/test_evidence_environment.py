"""Where a training ran: all of its ranks, and what counts as another place."""

from __future__ import annotations

import pytest
from each_row import each_row
from evidence_cases import evidence_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import RunError
from gate.evidence.harness_files import Summary
from gate.evidence.rank_environments import environment_of, leave_out_packages
from gate.evidence.usable import refuse_unusable
from gate.settings.gate_settings import Device
from gate.training.environment import Environment, moved_packages
from gate.training.runs import StoppedBy

names = st.sampled_from(("device", "driver", "nccl", "torch"))
environments = st.dictionaries(names, st.sampled_from(("none", "a", "b"))).map(
    lambda parts: Environment(parts=parts)
)


@given(environments, environments)
def test_what_moved_is_the_same_from_either_side(one: Environment, other: Environment) -> None:
    assert one.moved(other) == other.moved(one)
    assert all(one.part(name) != other.part(name) for name in one.moved(other))
    assert one.moved(one) == ()


@given(environments)
def test_a_part_that_does_not_apply_is_as_good_as_absent(one: Environment) -> None:
    told = Environment(parts={"device": "none", "driver": "none", "nccl": "none", **one.parts})
    assert one.moved(told) == ()


@each_row(
    ("device", "on_gpu", "ranks_on_cpu"),
    [
        ("cpu", False, True),
        ("NVIDIA A10", True, False),
        ("NVIDIA A10 | cpu", True, True),
        ("NVIDIA A10 | NVIDIA H100", True, False),
        ("none", False, True),
    ],
)
def test_one_rank_on_a_cpu_is_seen_among_those_on_a_gpu(
    device: str,
    on_gpu: bool,  # noqa: FBT001 - a column of the table
    ranks_on_cpu: bool,  # noqa: FBT001 - as above
) -> None:
    found = Environment(parts={"device": device})
    assert (found.on_gpu, found.ranks_on_cpu) == (on_gpu, ranks_on_cpu)


def test_a_rank_that_fell_back_to_the_cpu_is_an_error_where_a_gpu_is_demanded() -> None:
    run = evidence_of(parts={"device": "NVIDIA A10 | cpu"})
    train = {"command": ("python", "t.py"), "max_steps": 1, "device": Device.CUDA}
    with pytest.raises(RunError, match="the training ran on the CPU"):
        refuse_unusable(run, settings_of(train=train))


VERSIONS = st.sampled_from(("1", "2"))
PACKAGE_NAMES = ("a-lib", "b-lib", "c-lib")


@st.composite
def installed(draw: st.DrawFn) -> Environment:
    versions = draw(st.dictionaries(st.sampled_from(PACKAGE_NAMES), VERSIONS, min_size=1))
    some = st.lists(st.sampled_from(PACKAGE_NAMES), unique=True).map(tuple)
    return Environment(
        parts={"packages": draw(st.sampled_from(("x", "y")))},
        packages=tuple(f"{name}=={version}" for name, version in sorted(versions.items())),
        imported=draw(some),
        ignored=draw(some),
        origins=draw(
            st.dictionaries(st.sampled_from(PACKAGE_NAMES), st.sampled_from(("project", "git 1")))
        ),
    )


@given(installed(), installed())
def test_packages_move_alike_from_either_side(one: Environment, other: Environment) -> None:
    assert one.moved(other) == other.moved(one)
    assert one.moved(one) == ()
    names = [move.name for move in moved_packages(one, other).counted]
    assert names == [move.name for move in moved_packages(other, one).counted]
    assert set(names).isdisjoint({*one.ignored, *other.ignored})
    known = {*one.imported, *other.imported}
    assert not known or known.issuperset(names)


@given(installed(), st.sampled_from(("tool==1", "tool==2")))
def test_a_tool_that_no_training_imports_moves_nothing(one: Environment, tool: str) -> None:
    one = one.model_copy(update={"imported": ("a-lib",)})
    more = one.model_copy(update={"packages": (*one.packages, tool), "parts": {"packages": "z"}})
    assert one.moved(more) == ()
    assert [move.name for move in moved_packages(one, more).aside] == ["tool"]


def _summary(*packages: str, **others: object) -> Summary:
    document = {"steps": 1, "stopped_by": StoppedBy.SCRIPT, "peak_memory_bytes": 1, "problems": ()}
    texts = {"device_memory_bytes": 0, "environment": {"os": "A", "packages": "f" * 64}}
    return Summary.model_validate({**document, **texts, "packages": packages, **others})


def test_what_any_rank_imported_counts_and_an_unlike_rank_is_named() -> None:
    here = environment_of(
        {
            0: _summary("numpy==2.0", "tool==1", imported=("numpy",)),
            3: _summary("numpy==1.26", "scipy==1.0", imported=("scipy",), environment={"os": "B"}),
        }
    )
    assert here.packages == ("numpy==1.26", "numpy==2.0", "scipy==1.0", "tool==1")
    assert here.imported == ("numpy", "scipy")
    assert here.part("os") == "A | B"
    assert [rank.described for rank in here.unlike_ranks] == [
        "rank 3: os: B instead of A",
        "rank 3: packages: numpy 1.26 instead of 2.0, scipy 1.0 beside none",
    ]


def test_equal_ranks_are_one_place() -> None:
    alone = environment_of({0: _summary("numpy==2.0", imported=("numpy",))})
    both = environment_of(dict.fromkeys((0, 1), _summary("numpy==2.0", imported=("numpy",))))
    assert alone == both
    assert both.unlike_ranks == ()


def test_the_settings_alone_say_what_is_ignored() -> None:
    environment = environment_of({0: _summary("Foo_Bar==1", "numpy==2.0", imported=("Foo_Bar",))})
    claimed = environment.model_copy(update={"ignored": ("numpy",)})
    run = evidence_of().model_copy(update={"environment": claimed})
    settings = settings_of(environment={"ignore": ("foo-*",)})
    left_out = leave_out_packages(run, settings.environment.ignore).environment
    assert left_out.ignored == ("Foo_Bar",)
    assert leave_out_packages(run, ()).environment.ignored == ()
    newer = left_out.model_copy(update={"packages": ("foo.bar==2", "numpy==2.0")})
    assert left_out.moved(newer) == ()
    assert environment.moved(newer.model_copy(update={"ignored": ()})) == ("packages",)


def test_neither_version_nor_place_of_the_project_itself_counts() -> None:
    one, other = (
        environment_of(
            {0: _summary(f"mine==0.1.dev{number}", imported=("mine",), origins={"mine": "project"})}
        )
        for number in (1, 2)
    )
    assert one.moved(other) == ()
    assert one.parts == other.parts


def test_another_commit_of_the_same_version_moves() -> None:
    one, other = (
        environment_of({0: _summary("lib==1", imported=("lib",), origins={"lib": f"git {commit}"})})
        for commit in ("a" * 40, "b" * 40)
    )
    (move,) = moved_packages(one, other).counted
    assert move.described == f"lib 1 (git {'a' * 12}) → 1 (git {'b' * 12})"
    assert one.moved(other) == ("packages",)


def test_editable_code_that_one_side_did_not_import_has_not_moved() -> None:
    origins = ("editable sha256:1", "editable sha256:2", "folder")
    one, other, unused = (
        environment_of({0: _summary("lib==1", imported=("lib",), origins={"lib": origin})})
        for origin in origins
    )
    assert one.moved(unused) == unused.moved(one) == ()
    assert one.moved(other) == ("packages",)
