"""The page of one machine: a section for each part, written anew when that part ran again."""

from __future__ import annotations

import re

from gpu_check.rows import Machine, PartResult

SECTION = re.compile(r"^## (?=[a-z]+: )", re.MULTILINE)
HEAD = """# The first half hour on a GPU: {gpu}

Written by `make gpu`; `make gpu-facts` and its like write one section anew. *held* and *failed* are
answers, *told* is a fact or a figure, *left out* is what this machine cannot show.

"""


def slug(gpu: str) -> str:
    """The name of a GPU as a part of a file's name: `NVIDIA H200` is `h200`."""
    plain = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return plain.removeprefix("nvidia-") or "cpu"


def sections_of(page: str) -> dict[str, str]:
    """Name of a part to its section, of a page that was written before."""
    return {text.partition(":")[0]: f"## {text}" for text in SECTION.split(page)[1:]}


def section(result: PartResult, machine: Machine) -> str:
    """One part, with the machine and the versions that it ran on."""
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
    """The whole page; parts that did not run now keep the section that they had `before`."""
    sections = sections_of(before)
    sections |= {result.name: section(result, machine) for result in results}
    known = [sections[name] for name in order if name in sections]
    return HEAD.format(gpu=machine.gpu or "none") + "".join(known).rstrip("\n") + "\n"


def _cell(text: str) -> str:
    """One line that ends no cell and starts no markup of its own."""
    plain = " ".join(text.split())
    # an underscore between letters starts no emphasis
    return re.sub(r"([|<*`\[\]\\]|(?<!\w)_|_(?!\w))", r"\\\1", plain)
