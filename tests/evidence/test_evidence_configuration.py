from __future__ import annotations

from each_row import each_row

from gate.evidence.configuration import (
    ConfigurationChange,
    configuration_changes,
    configuration_digest,
    configuration_of,
    plain_values,
    proven_change,
)


def test_the_digest_is_of_names_and_values_in_any_order() -> None:
    one = configuration_digest({"a": "1", "b": "2"})
    assert one == configuration_digest({"b": "2", "a": "1"})
    assert one != configuration_digest({"a": "1", "b": "3"})
    assert len(one) == 64


def test_what_differs_between_runs_is_left_out_and_named() -> None:
    found = configuration_of([{"a": "1", "t": "9"}, {"a": "1", "t": "10"}, {"a": "1"}])
    assert found is not None
    assert (found.values, found.varies) == ({"a": "1"}, ("t",))
    assert found.digest == configuration_digest({"a": "1"})
    assert configuration_of([]) is configuration_of([{}]) is None


def test_changes_say_both_sides_and_where() -> None:
    changes = configuration_changes(
        {"argparse.lr": "0.1", "conf/a.yaml.x.y": "1", "same": "0"},
        {"argparse.lr": "0.2", "hydra.z": '"on"', "same": "0"},
    )
    assert [change.described for change in changes] == [
        "lr: 0.1 → 0.2 in the parsed arguments",
        "x.y: 1 → nothing in conf/a.yaml",
        'z: nothing → "on" in Hydra\'s configuration',
    ]


def _changed(**names: tuple[str, str]) -> list[ConfigurationChange]:
    return [
        ConfigurationChange(name=name, before=before, after=after)
        for name, (before, after) in names.items()
    ]


@each_row(
    ("changes", "name"),
    [
        ({"argparse.lr": ("0.1", "0.2")}, "argparse.lr"),
        ({"argparse.lr": ("1e-1", "2e-1")}, "argparse.lr"),
        # the same value in the file and in what was parsed of it
        ({"c.yaml.opt.lr": ("0.1", "0.2"), "hydra.opt.lr": ("0.1", "0.2")}, "hydra.opt.lr"),
        # either may be the one: then none is named
        ({"argparse.lr": ("0.1", "0.2"), "argparse.wd": ("0.1", "0.2")}, None),
        ({"argparse.lr": ("0.1", "0.3")}, None),
        ({"argparse.lr": ('"0.1"', '"0.2"')}, None),
        ({"argparse.lr": ("", "0.2")}, None),
        ({"argparse.lr": ("9" * 400, "0.2")}, None),
        ({"argparse.on": ("false", "true")}, None),
        ({}, None),
    ],
)
def test_a_change_is_proven_by_both_numbers_alone(
    changes: dict[str, tuple[str, str]], name: str | None
) -> None:
    found = proven_change(_changed(**changes), "0.1", "0.2")
    assert (found.name if found else None) == name
    assert proven_change(_changed(**{"argparse.lr": ("0", "1")}), "", "") is None


def test_a_long_value_is_kept_whole() -> None:
    one, other = (f'"{"x" * 390}{end}"' for end in "ab")
    assert plain_values({"one": one, "other": other}) == {"one": one, "other": other}


def test_what_could_mislead_a_reader_is_escaped() -> None:
    ((name, text),) = plain_values({"a\u202eb": "\u202e", "": "1"}).items()
    assert "\u202e" not in name + text


def test_among_changes_that_were_cut_none_is_proven() -> None:
    before = {"argparse.lr": "0.1", **{f"z.{place}": "0" for place in range(300)}}
    after = {"argparse.lr": "0.2", **{f"z.{place}": "1" for place in range(300)}}
    assert proven_change(configuration_changes(before, after), "0.1", "0.2") is None
    few = configuration_changes({"argparse.lr": "0.1"}, {"argparse.lr": "0.2"})
    assert proven_change(few, "0.1", "0.2") is not None
