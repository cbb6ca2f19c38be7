"""The glossary of causes: what a first divergence may come from."""

from __future__ import annotations

from enum import StrEnum


class CauseClass(StrEnum):
    """The glossary of causes, in its fixed order: what comes before explains what follows.

    Uninitialised memory, one operator, a race of threads, a kernel and a collective are proved by
    runs that are made for it; fingerprints alone never name them.
    """

    ENVIRONMENT = "environment"
    DEPENDENCY = "dependency"
    RUN_SETTINGS = "run-settings"
    DATA = "data"
    STRUCTURE = "structure"
    SEED = "initialisation-or-seed"
    DATA_ORDER = "data-order"
    RANDOM_STATE = "random-state-use"
    UNINITIALISED_MEMORY = "uninitialised-memory"
    OPERATOR = "operator-nondeterminism"
    THREAD_RACE = "thread-race-or-reduction-order"
    KERNEL = "compiled-or-custom-kernel"
    PRECISION = "precision"
    OPTIMIZER = "optimizer-or-schedule"
    COLLECTIVE = "collective"
    CHECKPOINT = "checkpoint-only"
    CODE = "code-change"
