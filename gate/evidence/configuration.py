"""The configuration that a training really used: names and values as the harness recorded them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field

from gate.text.document import Document
from gate.text.json_text import canonical_sha256
from gate.text.untrusted_text import escaped_lines

MAX_VALUES: Final = 2000
MAX_NAME: Final = 200
MAX_VALUE: Final = 500
MAX_CHANGES: Final = 200
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Value = Annotated[str, Field(max_length=MAX_VALUE)]
# each value as JSON; names are such as `argparse.lr` or `conf/train.yaml.optimizer.lr`
ConfigurationValues = Annotated[dict[Name, Value], Field(max_length=MAX_VALUES)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SOURCES: Final = {
    "argparse": "the parsed arguments",
    "TrainingArguments": "TrainingArguments",
    "hydra": "Hydra's configuration",
    "omegaconf": "the OmegaConf configuration",
}
# file names contain dots too, so a value's own name begins after the suffix
_IN_FILE: Final = re.compile(r"(.+?\.(?:yaml|yml|toml|json))(?:\.(.*))?\Z")


class Configuration(Document):
    """The configuration of the first strict run.

    `digest` is the SHA-256 of the canonical JSON of `values`. `varies` names values that were
    different in other strict runs of the same call, such as a time. They are in neither of the two.
    """

    digest: Sha256
    values: ConfigurationValues
    varies: Annotated[tuple[Name, ...], Field(max_length=MAX_VALUES)] = ()


class ConfigurationChange(Document):
    """A value that differs, as JSON; a side without the value is empty."""

    name: Name
    before: Value = ""
    after: Value = ""

    @property
    def place(self) -> str:
        """The value's name and its source, such as `lr in the parsed arguments`."""
        return " in ".join(name_and_source(self.name))

    @property
    def parsed(self) -> bool:
        """Whether the training parsed or composed the value, rather than only read it in a file."""
        return self.name.partition(".")[0] in SOURCES

    @property
    def described(self) -> str:
        """The change as text, such as `lr: 0.1 → 0.2 in the parsed arguments`."""
        name, source = name_and_source(self.name)
        before, after = self.before or "nothing", self.after or "nothing"
        return f"{name}: {before} → {after} in {source}"


def plain_values(values: Mapping[str, str]) -> dict[str, str]:
    """Return the recorded values with every character escaped that could mislead a reader."""
    plain = {_plain(name)[:MAX_NAME]: _plain(text)[:MAX_VALUE] for name, text in values.items()}
    return {name: text for name, text in plain.items() if name}


def _plain(text: str) -> str:
    """Return the escaped text uncut: values may differ only in their last character."""
    return escaped_lines(text).replace("\n", "\\n")


def configuration_digest(values: Mapping[str, str]) -> str:
    """Return the SHA-256 over names and values, independent of their order."""
    return canonical_sha256(dict(values))


def configuration_of(runs: Sequence[Mapping[str, str]]) -> Configuration | None:
    """Return the configuration of equal runs, or None if the first run has no values.

    The values are those of the first run; values that vary between the runs are left out.
    """
    if not runs or not runs[0]:
        return None
    first = runs[0]
    varies = tuple(
        name for name in sorted(first) if any(run.get(name) != first[name] for run in runs[1:])
    )
    values = {name: first[name] for name in sorted(first) if name not in varies}
    return Configuration(digest=configuration_digest(values), values=values, varies=varies)


def configuration_changes(
    before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[ConfigurationChange, ...]:
    """Return the values that differ, sorted by name."""
    changed = (
        ConfigurationChange(name=name, before=before.get(name, ""), after=after.get(name, ""))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    )
    return tuple(changed)[:MAX_CHANGES]


def name_and_source(name: str) -> tuple[str, str]:
    """Return a value's own name, and the words for its source."""
    source, _, rest = name.partition(".")
    if source in SOURCES:
        return rest or name, SOURCES[source]
    match = _IN_FILE.match(name)
    return (match[2] or "the file", match[1]) if match else (name, "the configuration")


def proven_change(
    changes: Sequence[ConfigurationChange], before: str, after: str
) -> ConfigurationChange | None:
    """Return the only change from and to exactly these numbers, or None if it is not unique.

    The same value often has several sources, such as a file and the arguments parsed from it. If
    all of these changes have one name, the first source is returned.
    """
    # the list was cut at this length, so further changes may fit
    if len(changes) >= MAX_CHANGES:
        return None
    fitting = [
        change
        for change in changes
        if _number(change.before) == _number(before) is not None
        and _number(change.after) == _number(after) is not None
    ]
    names = {name_and_source(change.name)[0].rpartition(".")[2] for change in fitting}
    order = list(SOURCES)

    def rank(change: ConfigurationChange) -> int:
        source = change.name.partition(".")[0]
        return order.index(source) if source in order else len(order)

    return min(fitting, key=rank) if len(names) == 1 else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # a whole number may be too large for a float
    return value if math.isfinite(value) else None
