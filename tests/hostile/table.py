"""All attempts, in the order of the threat table."""

from __future__ import annotations

from attempt import Attempt
from attempts_beside import BESIDE
from attempts_evidence import CHECKPOINTS, FORGERY
from attempts_files import COMMANDS, DECIDERS, RUNS, WISHES
from attempts_floods import BOMBS
from attempts_installing import INSTALLING
from attempts_processes import NETWORK, PROCESSES
from attempts_secrets import HOST, SECRETS
from attempts_texts import LINKS, TEXT
from attempts_words import WORDS

ATTEMPTS: tuple[Attempt, ...] = (
    *SECRETS,
    *INSTALLING,
    *HOST,
    *COMMANDS,
    *DECIDERS,
    *WISHES,
    *RUNS,
    *BESIDE,
    *WORDS,
    *PROCESSES,
    *NETWORK,
    *FORGERY,
    *CHECKPOINTS,
    *BOMBS,
    *LINKS,
    *TEXT,
)
