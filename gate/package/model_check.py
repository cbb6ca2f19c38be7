"""What a model file holds of a sealed training: the answer for promotion and rollback."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PartAnswer(StrEnum):
    """What a file holds of one part of the sealed state."""

    EQUAL = "equal"
    DIFFERENT = "different"
    ABSENT = "not in this file"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedPart:
    """Model or optimizer: of `sealed` tensors so many are `equal` in the file.

    `differing` and `missing` name the first of those that are other or not there, `further` counts
    what only the file has.
    """

    name: str
    answer: PartAnswer
    sealed: int
    equal: int
    differing: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    further: int = 0

    @property
    def described(self) -> str:
        """For example `model: equal (6 tensors)`."""
        if self.answer is PartAnswer.ABSENT:
            return f"{self.name}: {self.answer}"
        if self.answer is PartAnswer.EQUAL:
            return f"{self.name}: equal ({self.sealed:,} tensors)"
        named = [f"{name} differs" for name in self.differing]
        named += [f"{name} is missing" for name in self.missing]
        if self.further:
            noun = "tensor" if self.further == 1 else "tensors"
            named.append(f"{self.further:,} {noun} more than the sealed run had")
        if not self.sealed:
            return f"{self.name}: {named[0]}"
        return (
            f"{self.name}: different, {self.equal:,} of {self.sealed:,} tensors equal "
            f"({'; '.join(named)})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCheck:
    """A file against the sealed state; `identical`: it is, root for root, what the script saved."""

    shown: str
    root: str
    identical: bool
    parts: tuple[CheckedPart, ...]

    @property
    def holds_the_model(self) -> bool:
        """Whether the model is there, all of it and nothing else.

        What an optimizer keeps may differ: it is a part of its own, and no weights.
        """
        answers = {part.name: part.answer for part in self.parts}
        return answers.get("model") is PartAnswer.EQUAL and "other" not in answers
