"""Who publishes a verdict."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """How much of the pipeline one step runs: all of it, the training, or the judging."""

    GATE = "gate"
    RUN = "run"
    JUDGE = "judge"


class SigningMethod(StrEnum):
    """What signs a pass."""

    KEY = "key"
    SIGSTORE = "sigstore"
