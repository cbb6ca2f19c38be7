"""What a report shows beside the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from gate.publishing.artifact import NOT_PUBLISHED, PublishedPackage
from gate.verdict.published_history import HistoryLine


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportLinks:
    """What a report shows beside the verdict: addresses and paths, empty when there is none.

    `history` is what earlier runs on the default branch came to, the oldest first; `published` is
    where the sealed package lies outside this call.
    """

    run_url: str = ""
    package_path: str = ""
    verify_command: str = ""
    history: tuple[HistoryLine, ...] = ()
    published: PublishedPackage = NOT_PUBLISHED
