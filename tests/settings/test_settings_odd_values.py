"""Every key with odd values: what is accepted means something, what means nothing is refused.

Walked over the JSON Schema of the settings, so that a new key is tried as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from each_row import each_row

from gate.errors import SettingsError
from gate.settings.gate_settings import GateSettings
from gate.settings.load import MINIMAL_FILE, parse_settings

SCHEMA: Mapping[str, Any] = GateSettings.model_json_schema()
MEMBER = "member"
TOLERANCE = {"metric": "file.loss"}
PATTERN = {"pattern": "a", "reason": "b"}
# what else a section needs before one of its keys can be looked at
NEEDED: Mapping[str, Any] = {
    "": {"version": 1, "train": {"command": "python train.py", "max_steps": 20}},
    "train": {"command": "python train.py", "max_steps": 20},
    "train.metrics": {"tensorboard": "t", "wandb": "w", "trackio": "k"},
    "train.checkpoint_exclude.0": PATTERN,
    "compare.tolerances.0": TOLERANCE,
    "compare.tolerances.0.derived": {"runs": 3, "factor": 2, "spread": 1, "confidence": 0.9},
    "compare.allow_not_finite.0": PATTERN,
    "compare.tensors": {"relative": 0.1},
    "baseline.quarantine.0": {"reason": "b", "since": "2026-01-01", "until": "2026-01-05"},
    "policy.thresholds.member": {"min": 0.1},
    "policy.ranking": {"metric": "a", "better_is": "lower"},
    "resume": {"checkpoint": "a.pt", "at_step": 3},
    "preprocess": {"command": "python make.py", "out": "made"},
    "data.0": {"path": "/srv/mini"},
    "publish.mlflow": {"uri": "https://example.org"},
    "isolation": {"image": f"sha256:{'0' * 64}"},
    "cluster": {"engine": "slurm", "folder": "/s"},
    "cluster.programs": {"submit": "/a", "wait": "/b", "cancel": "/c"},
    "cluster.pod": {"image": f"a@sha256:{'0' * 64}", "volume_claim": "v"},
}
# words of a command, and values of variables, are whatever a program is given
WORDS = ("train.env.member", "command.0", "arguments.0")


def _entry(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schema if reference is None else SCHEMA["$defs"][reference.rpartition("/")[2]]


def _leaves(
    schema: Mapping[str, Any], path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    """Every key, list and member of a mapping that the schema knows, with its part of it."""
    entry = _entry(schema)
    yield path, entry
    for name, below in entry.get("properties", {}).items():
        yield from _leaves(below, (*path, name))
    for each in entry.get("anyOf", ()):
        yield from _leaves(each, path)
    members = [*entry.get("patternProperties", {}).values(), entry.get("additionalProperties")]
    for place, each in ((MEMBER, members[0]), (MEMBER, members[-1]), (0, entry.get("items"))):
        if isinstance(each, dict):
            yield from _leaves(each, (*path, place))


def _document(path: tuple[str | int, ...], value: object, at: int = 0) -> object:
    if at == len(path):
        return value
    part = path[at]
    below = _document(path, value, at + 1)
    if isinstance(part, int):
        return [below]
    return {**NEEDED.get(".".join(map(str, path[:at])), {}), part: below}


def _accepted(path: tuple[str | int, ...], value: object) -> bool:
    try:
        parse_settings(json.dumps(_document(path, value)).encode(), "s")
    except SettingsError:
        return False
    return True


def _keys_of(kind: str) -> list[tuple[str | int, ...]]:
    found = {path: None for path, entry in _leaves(SCHEMA) if entry.get("type") == kind}
    assert len(found) > 5, kind
    return list(found)


def _taken(kind: str, *values: object, but: tuple[str, ...] = ()) -> set[str]:
    return {
        name
        for path in _keys_of(kind)
        if not (name := ".".join(map(str, path))).endswith(but or ("\0",))
        and any(_accepted(path, value) for value in values)
    }


def test_a_truth_value_is_no_number_and_a_number_no_truth_value() -> None:
    numbers = {*_taken("integer", True, False), *_taken("number", True, False)}
    # the words of a knob; options of sbatch such as `exclusive` stand without a value
    assert numbers - {"determinism.knobs.member", "cluster.options.member"} == set()
    words = {name.partition(".")[0] for name in _taken("boolean", 0, 1, 1.0, "true", "yes", "no")}
    assert words - {"determinism", "cluster"} == set()
    for path in (("version",), ("cluster", "allocations")):
        assert _accepted(path, 1)
        assert not any(_accepted(path, value) for value in (True, 1.0, "1"))


def test_a_text_is_no_number_and_a_fraction_no_whole_number() -> None:
    free = {"determinism.knobs.member", "cluster.options.member", "cluster.pod.resources.member"}
    assert {*_taken("integer", "1", "3", "100"), *_taken("number", "1", "0.5")} - free == set()
    assert _taken("integer", 1.5, 100.0) - free == set()


def test_no_number_is_so_large_that_it_means_nothing() -> None:
    # in the metric's own unit there is no largest number
    units = {"absolute", "relative", "factor", "spread", "min", "max"}
    taken = {*_taken("integer", 10**20), *_taken("number", 1e300)}
    assert {name for name in taken if name.rpartition(".")[2] not in units} == set()
    assert "slo.spread" not in taken


def test_a_blank_text_is_refused() -> None:
    assert _taken("string", "", "  ", "\n", but=WORDS) == set()


def test_a_list_names_nothing_twice() -> None:
    lists = [path for path in _keys_of("array") if path[-1] not in {"command", "arguments"}]
    value = {"gpus": "0", "pass_env": "A", "comparable_environment": "cpu", "seeds": 42}
    once = {
        ".".join(map(str, path))
        for path in lists
        for one in (value.get(str(path[-1]), "a"),)
        if _accepted(path, [one])
    }
    assert len(once) >= 10
    twice = {
        ".".join(map(str, path))
        for path in lists
        for one in (value.get(str(path[-1]), "a"),)
        if _accepted(path, [one, one])
    }
    assert twice == set()


def _refused(lines: str) -> SettingsError:
    try:
        parse_settings(f"{MINIMAL_FILE}{lines}\n".encode(), "s")
    except SettingsError as fault:
        return fault
    message = f"accepted: {lines}"
    raise AssertionError(message)


@each_row(
    ("number", "means"),
    [("010", "8"), ("-017", "-15"), ("0_7", "7"), ("1:30", "90"), ("1:30.5", "90.5")],
)
def test_a_number_that_two_versions_of_yaml_read_differently_is_refused(
    number: str, means: str
) -> None:
    fault = _refused(f"cost:\n  rounds: {number}")
    assert fault.message == (
        f"s: line 6: cost.rounds: {number} is {means} in YAML 1.1 and something else in YAML 1.2"
    )
    assert fault.hint.startswith("Write the number without a leading zero or a colon")


@each_row("number", ["8", "1_0", "0x8", "0"])
def test_other_numbers_are_what_they_look_like(number: str) -> None:
    settings = parse_settings(f"{MINIMAL_FILE}  seed: {number}\n".encode(), "s")
    assert settings.train.seed == int(number, 0)


@each_row(
    ("lines", "told"),
    [
        (
            "compare: {tolerances: [{metric: loss, steps: 0-3}]}",
            "compare.tolerances[0].steps: is 0-3, and the steps of the loss count from 1 to ",
        ),
        ("compare: {tolerances: [{metric: loss, steps: 21-30}]}", "is 21-30, and the steps of"),
        (
            "compare: {tolerances: [{metric: '*', ulp: 1}, {metric: loss, ulp: 2}]}",
            "line 5: compare.tolerances[1]: is never used: compare.tolerances[0] matches the ",
        ),
        (
            "compare: {tolerances: [{metric: a, steps: 1-2}, {metric: a, steps: 1-2}]}",
            "compare.tolerances[1]: is never used",
        ),
        ("slo: {gates: {'a b': {}}}", "slo.gates.a b: is not a valid key: a key must match the "),
        ("slo: {gates: {'.x': {}}}", "slo.gates..x: is not a valid key"),
        ("  metrics: {wandb_keys: [a]}", "wandb_keys selects from wandb, which is not set"),
        ("  metrics: {tensorboard_tags: [a]}", "tensorboard_tags selects from tensorboard, "),
        ("  metrics: {trackio_keys: [a]}", "trackio_keys selects from trackio, which is not set"),
        ("  env: {A: a}\n  pass_env: [A]", "train: A is in env and in pass_env"),
        (
            "isolation: {pids: 20}",
            "pids needs isolation.image",
        ),
        (
            "isolation: {gpus: ['0']}",
            "gpus needs isolation.image",
        ),
        (
            f"isolation: {{image: 'sha256:{'0' * 64}', gpus: [all, '0']}}",
            "gpus: all includes every other one",
        ),
        (
            f"  device: cpu\nisolation: {{image: 'sha256:{'0' * 64}', gpus: ['0']}}",
            "isolation.gpus: names GPUs, and train.device: cpu hides every one: remove ",
        ),
        ("cluster: {folder: /s}", "cluster: folder needs an engine, such as engine: slurm"),
        ("cluster: {queue_seconds: 9}", "cluster: queue_seconds needs an engine"),
        (
            "cluster: {engine: slurm, folder: /s, options: {partition: true}}",
            "cluster.options: partition: true is not a value of it",
        ),
        ("diagnosis: {escalate: false, budget_seconds: 9}", "budget_seconds limits the runs that"),
        ("signing: {trusted_keys: ../k.json}", "signing.trusted_keys: must be a relative path"),
        (
            "variants: {a: {arguments: x}, b: {arguments: x}}",
            "line 5: variants: a and b are the same training, so they cannot be ranked",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused(lines: str, told: str) -> None:
    assert told in _refused(lines).details[0]


@each_row(
    "lines",
    [
        # a file's own steps may begin at 0, and go on behind the last update
        "compare: {tolerances: [{metric: file.loss, steps: 0-300}]}",
        "compare: {tolerances: [{metric: '*loss', steps: 1-10}, {metric: '*loss'}]}",
        "compare: {tolerances: [{metric: '*loss', steps: final}, {metric: '*'}]}",
        "slo: {gates: {nlp.small_1-x: {}}}",
        "cluster: {engine: slurm, folder: /s, options: {exclusive: true, contiguous: true}}",
    ],
)
def test_what_looks_alike_and_means_something_is_accepted(lines: str) -> None:
    parse_settings(f"{MINIMAL_FILE}{lines}\n".encode(), "s")


@each_row(("kind", "values", "least"), [
    ("integer", (1, 2, 3, 20, 100, 100_000_000), 20),
    ("number", (0.3, 1.5, 100.0), 20),
    ("string", ("a", "every", "2026-01-02", "/s", "https://a.example.org", "0" * 64), 40),
    ("boolean", (True, False), 10),
    ("array", ([], ["a"]), 15),
])  # fmt: skip
def test_the_walk_gets_to_the_value_itself(kind: str, values: tuple[Any, ...], least: int) -> None:
    assert len(_taken(kind, *values)) >= least
