"""Items of public reproducibility checklists: their number and name, in our own words.

Sources: the NeurIPS paper checklist, https://neurips.cc/public/guides/PaperChecklist, and the
machine learning reproducibility checklist that MLRC uses (J. Pineau, version 2.0),
https://www.cs.mcgill.ca/~jpineau/ReproducibilityChecklist.pdf. The second one has no numbers: its
sections are named.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Checklist(StrEnum):
    """Where an item comes from."""

    NEURIPS = "NeurIPS paper checklist"
    MLRC = "ML reproducibility checklist (MLRC)"


SOURCES: Final = {
    Checklist.NEURIPS: "https://neurips.cc/public/guides/PaperChecklist",
    Checklist.MLRC: "https://www.cs.mcgill.ca/~jpineau/ReproducibilityChecklist.pdf",
}


class Topic(StrEnum):
    """What of a result an item asks about; `author` is what no run can answer."""

    AUTHOR = "author"
    REPRODUCIBILITY = "reproducibility"
    ACCESS = "access"
    SETTING = "setting"
    SIGNIFICANCE = "significance"
    COMPUTE = "compute"
    DATA = "data"
    DEPENDENCIES = "dependencies"
    TRAINING_CODE = "training-code"
    RUNS = "runs"
    HYPERPARAMETERS = "hyperparameters"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChecklistItem:
    """One item: its number or section, what it asks, and what it is about."""

    checklist: Checklist
    number: str
    asks: str
    topic: Topic = Topic.AUTHOR


class ChecklistAnswer(StrEnum):
    """`partly`: what is known answers a part of what is asked."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"
    AUTHOR = "for the author"


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredItem:
    """An item with its answer and the facts behind it; `missing` is what the answer lacks."""

    item: ChecklistItem
    answer: ChecklistAnswer
    facts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def _neurips(number: int, asks: str, topic: Topic = Topic.AUTHOR) -> ChecklistItem:
    return ChecklistItem(checklist=Checklist.NEURIPS, number=str(number), asks=asks, topic=topic)


def _mlrc(section: str, asks: str, topic: Topic = Topic.AUTHOR) -> ChecklistItem:
    return ChecklistItem(checklist=Checklist.MLRC, number=section, asks=asks, topic=topic)


ITEMS: Final = (
    _neurips(1, "Claims: abstract and introduction say what the paper shows"),
    _neurips(2, "Limitations: they are discussed"),
    _neurips(3, "Theory: assumptions and proofs are complete"),
    _neurips(4, "Reproducibility: main results can be had again", Topic.REPRODUCIBILITY),
    _neurips(5, "Open access: data and code, with what runs them", Topic.ACCESS),
    _neurips(6, "Setting: splits, hyperparameters and how they were chosen", Topic.SETTING),
    _neurips(7, "Significance: error bars, and what they are over", Topic.SIGNIFICANCE),
    _neurips(8, "Compute: workers, memory and time of each run", Topic.COMPUTE),
    _neurips(9, "Ethics: the conference's code is kept"),
    _neurips(10, "Impact: effects on society are discussed"),
    _neurips(11, "Safeguards: against misuse of what is released"),
    _neurips(12, "Licenses: of assets that others made"),
    _neurips(13, "New assets: they are documented"),
    _neurips(14, "People: instructions and pay of participants"),
    _neurips(15, "People: risks were reviewed"),
    _neurips(16, "Language models: their use is declared"),
    _mlrc("Models and algorithms", "Model, setting and complexity are described"),
    _mlrc("Theory", "Claims have statements and proofs"),
    _mlrc("Data", "Size, splits and what was left out, with where it lies", Topic.DATA),
    _mlrc("Code", "Dependencies are specified", Topic.DEPENDENCIES),
    _mlrc("Code", "Code that trains, and the command for it", Topic.TRAINING_CODE),
    _mlrc("Code", "Code that evaluates, trained models, a table of results"),
    _mlrc("Experiments", "Hyperparameters: range, choice and values", Topic.HYPERPARAMETERS),
    _mlrc("Experiments", "How many runs there were", Topic.RUNS),
    _mlrc("Experiments", "What is reported, with mean and variation", Topic.SIGNIFICANCE),
    _mlrc("Experiments", "Time of each run, and the machines", Topic.COMPUTE),
)
