"""Where a script's own metrics come from."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from gate.text.document import RelativePath, path_inside_project
from gate.text.records_document import Document


class MetricsSettings(Document):
    """Where metrics come from, besides the loss that the harness records by itself."""

    file: RelativePath | None = Field(
        default=None,
        description="JSON Lines file that the script writes, relative to train.workdir: one "
        "object a line, with `step` and numbers. They are read exactly, without rounding. "
        "Objects and lists become names such as `file.eval.loss` and `file.per_class.0`; text is "
        "not compared.",
    )
    stdout_pattern: str | None = Field(
        default=None,
        description="Regular expression with named groups that is searched for in each line of "
        "output: the group `step` is the step, every other group a metric. It is a weaker "
        "source, because print() rounds.",
    )

    tensorboard: RelativePath | None = Field(
        default=None,
        description="Folder of TensorBoard event files, relative to train.workdir, with its "
        "subfolders. Their scalars are float32; everything else is ignored.",
    )
    tensorboard_tags: tuple[str, ...] = Field(
        default=("*",),
        min_length=1,
        max_length=100,
        description="Shell-style patterns of the TensorBoard tags to compare, for example "
        "`train/*`. Leave out tags that depend on time.",
    )

    @field_validator("file", "tensorboard")
    @classmethod
    def _file_stays_inside(cls, value: str | None) -> str | None:
        return None if value is None else path_inside_project(value)

    @field_validator("stdout_pattern")
    @classmethod
    def _pattern_names_groups(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            groups = re.compile(value).groupindex
        except re.error as error:
            message = f"is not a regular expression: {error}"
            raise ValueError(message) from error
        if not set(groups) - {"step"}:
            message = "needs a named group for each metric, for example (?P<loss>[0-9.]+)"
            raise ValueError(message)
        return value
