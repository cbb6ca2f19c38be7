"""The page of one machine: a section per part, replaced when that part runs again."""

from __future__ import annotations

import re

from gpu_check.rows import Machine, PartResult

SECTION = re.compile(r"^## (?=[a-z]+: )", re.MULTILINE)
HEAD = """# The first half hour on a GPU: {gpu}

Written by `make gpu`; `make gpu-facts` and its like write one section anew. *held* and *failed* are
answers, *told* is a fact or a figure, *left out* is what this machine cannot show.

"""


def slug(gpu: str) -> str:
    """Return a GPU's name for use in a file name, such as `h200` for `NVIDIA H200`."""
    plain = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return plain.removeprefix("nvidia-") or "cpu"


def sections_of(page: str) -> dict[str, str]:
    """Return the sections of an earlier page, by the name of their part."""
    return {text.partition(":")[0]: f"## {text}" for text in SECTION.split(page)[1:]}


def section(result: PartResult, machine: Machine) -> str:
    """Return a part's section, with the machine and the versions that it ran on."""
    lines = [
        f"## {result.name}: {result.title}",
        "",
        f"`make gpu-{result.name}`, {result.day}, {result.seconds:.0f} s: {result.summary}.",
        f"{machine.software}; {machine.processor}.",
        "",
        "| what | answer | seen |",
        "|---|---|---|",
        *(f"| {_cell(row.what)} | {row.answer} | {_cell(row.told)} |" for row in result.rows),
    ]
    return "\n".join(lines) + "\n\n"


def page(
    results: tuple[PartResult, ...], machine: Machine, order: tuple[str, ...], before: str = ""
) -> str:
    """Return the whole page in the given order of parts.

    Parts that did not run now keep their section of `before`, the text of the earlier page.
    """
    sections = sections_of(before)
    sections |= {result.name: section(result, machine) for result in results}
    known = [sections[name] for name in order if name in sections]
    return HEAD.format(gpu=machine.gpu or "none") + "".join(known).rstrip("\n") + "\n"


def _cell(text: str) -> str:
    """Return text on one line, with the characters escaped that end a cell or start markup."""
    plain = " ".join(text.split())
    # Markdown reads no emphasis from an underscore between letters, so names keep theirs
    return re.sub(r"([|<*`\[\]\\]|(?<!\w)_|_(?!\w))", r"\\\1", plain)
