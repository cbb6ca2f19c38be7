"""What `determinism:` in `repro-gate.yml` may say."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from gate.settings.knobs import OFF, ON, Profile, check_override
from gate.text.document import OperatorName
from gate.text.records_document import Document


class OnOverride(StrEnum):
    """What happens when the training overrides what strict mode set."""

    OBSERVE = "observe"
    RESTORE = "restore"
    FAIL = "fail"


def _word(value: object) -> object:
    """Take `on`, `off` and bare numbers as YAML gives them: as truth values and numbers."""
    if isinstance(value, bool):
        return ON if value else OFF
    return str(value) if isinstance(value, int) else value


Word = Annotated[str, BeforeValidator(_word, json_schema_input_type=str | bool | int)]


class DeterminismSettings(Document):
    """What the strict runs pin. Threads are pinned in every run: they are part of the result."""

    threads: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="CPU threads of every run. Results depend on it, so it never follows the "
        "machine.",
    )
    fill_uninitialized_memory: bool = Field(
        default=False,
        description="Let torch fill new memory with NaN in strict runs. That is slower, and it "
        "hides reads of uninitialised memory.",
    )
    allow_operators: tuple[OperatorName, ...] = Field(
        default=(),
        description="Operators without a deterministic implementation that strict runs may still "
        "use, named as in the error message. That is a weaker level, and the verdict says so.",
    )
    profile: Profile = Field(
        default=Profile.STRICT,
        description="What strict runs set: `strict` sets every knob, `default` only seeds and "
        "threads.",
    )
    knobs: dict[str, Word] = Field(
        default_factory=dict,
        description="Single knobs that override the profile: `on`, `off`, `keep` (leave it as it "
        "is) or a value. docs/knobs.md has the table of knobs.",
    )
    on_override: OnOverride = Field(
        default=OnOverride.OBSERVE,
        description="What happens when the script overrides a setting: `observe` reports it, "
        "`restore` sets it again and reports it, `fail` makes the run an error.",
    )

    @field_validator("knobs")
    @classmethod
    def _known_knobs(cls, value: dict[str, str]) -> dict[str, str]:
        for name, word in value.items():
            check_override(name, word)
        return value

    @property
    def overrides(self) -> dict[str, str]:
        """The single knobs; memory fill has a key of its own, which its knob's name overrides."""
        return ({"memory_fill": ON} if self.fill_uninitialized_memory else {}) | self.knobs

    def parts_of_the_experiment(self) -> dict[str, object]:
        """What changes the numbers of a training: listed in full where it is not the default.

        The first two stand always, as they did in baselines recorded before there were knobs.
        """
        # only `restore` changes what is computed; the other two look on, or refuse
        left_out = {"on_override"} if self.on_override is not OnOverride.RESTORE else set()
        changed = self.model_dump(mode="json", exclude_defaults=True, exclude=left_out)
        return changed | {
            "threads": self.threads,
            "fill_uninitialized_memory": self.fill_uninitialized_memory,
        }
