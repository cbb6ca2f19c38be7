"""Combine the environments of all ranks into one, and find what differs between the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice

from gate.evidence.harness_files import Summary
from gate.evidence.run_evidence import RunEvidence
from gate.system.machine import RankFacts
from gate.text.digests import sha256_hex
from gate.text.untrusted_text import escaped_lines, plain_text
from gate.training.environment import (
    BETWEEN_RANKS,
    INDEX,
    MAX_PACKAGE_TEXT,
    MAX_PACKAGES,
    PACKAGES,
    PROJECT,
    Environment,
    UnlikeRank,
    moved_packages,
    normalized_name,
)

MAX_UNLIKE = 1000
MAX_NAMED = 20
MAX_PART_TEXT = 100
MAX_FACT_TEXT = 4000
MAX_UNLIKE_TEXT = 2000


def environment_of(summaries: Mapping[int, Summary]) -> Environment:
    """Return the environment of all ranks, which are given by rank, rank 0 first.

    A part on which the ranks agree is listed once. If they differ, it has all values in the order
    of the ranks. A package that only some ranks have or imported counts too, because all ranks are
    one training.
    """
    by_rank = {rank: _of_rank(summary) for rank, summary in summaries.items()}
    environments = list(by_rank.values())
    names = dict.fromkeys(name for rank in environments for name in rank.parts)
    parts = {
        name: BETWEEN_RANKS.join(dict.fromkeys(rank.part(name) for rank in environments))
        for name in names
    }
    together = Environment(
        parts=parts,
        packages=_union(rank.packages for rank in environments),
        imported=_union(rank.imported for rank in environments),
        origins=_origins(environments),
        unlike_ranks=tuple(islice(_unlike(by_rank), MAX_UNLIKE)),
    )
    return _with_digest(together)


def facts_of(summaries: Mapping[int, Summary]) -> tuple[RankFacts, ...]:
    """Return the facts that each rank reported, for at most `MAX_UNLIKE` ranks."""
    return tuple(
        RankFacts(
            rank=rank,
            facts=_plain_map(summary.facts, MAX_FACT_TEXT),
            variables=_plain_map(summary.variables, MAX_PACKAGE_TEXT),
        )
        for rank, summary in islice(summaries.items(), MAX_UNLIKE)
    )


def _plain_map(texts: Mapping[str, str], most: int) -> dict[str, str]:
    return {
        escaped_lines(name)[:MAX_PART_TEXT]: escaped_lines(text)[:most]
        for name, text in texts.items()
    }


def leave_out_packages(run: RunEvidence, patterns: Sequence[str]) -> RunEvidence:
    """Return the run with the distributions that match these patterns ignored in its environment.

    Only the settings decide what is ignored, so the run's own list is replaced.
    """
    environment = run.environment
    ignored = tuple(
        name
        for name in dict.fromkeys(line.partition("==")[0] for line in environment.packages)
        if is_ignored(name, patterns)
    )
    if ignored == environment.ignored:
        return run
    here = _with_digest(environment.model_copy(update={"ignored": ignored}))
    return run.model_copy(update={"environment": here})


def is_ignored(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the settings ignore a distribution of this name."""
    normalized = (pattern.lower().replace("_", "-").replace(".", "-") for pattern in patterns)
    return any(fnmatchcase(normalized_name(name), pattern) for pattern in normalized)


def _of_rank(summary: Summary) -> Environment:
    return Environment(
        parts=dict(summary.environment),
        packages=_plain(summary.packages),
        imported=_plain(summary.imported),
        origins=dict(zip(_plain(summary.origins), _plain(summary.origins.values()), strict=True)),
    )


def _plain(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(plain_text(text)[:MAX_PACKAGE_TEXT] for text in texts)


def _union(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({text for texts in lists for text in texts}))[:MAX_PACKAGES]


def _origins(ranks: Sequence[Environment]) -> dict[str, str]:
    names = sorted({name for rank in ranks for name in rank.origins})[:MAX_PACKAGES]
    # a rank without an origin has the package from an index
    texts = (dict.fromkeys(rank.origins.get(name, INDEX) for rank in ranks) for name in names)
    return {
        name: BETWEEN_RANKS.join(text)[:MAX_PACKAGE_TEXT]
        for name, text in zip(names, texts, strict=True)
    }


def _with_digest(environment: Environment) -> Environment:
    """Return the environment with its part `packages`: a SHA-256 over the packages that count.

    Each package is included with its origin. Ignored packages, the project itself and packages that
    no rank imported do not count.
    """
    if not environment.packages:
        return environment
    imported = set(map(normalized_name, environment.imported))
    left_out = {normalized_name(name) for name in environment.ignored}
    # the project itself is the commit under test and not its environment; its version may name the
    # commit
    left_out |= {
        normalized_name(n) for n, origin in environment.origins.items() if origin == PROJECT
    }
    lines = [
        f"{line} {environment.origins.get(name, INDEX)}\n"
        for line in environment.packages
        if (key := normalized_name(name := line.partition("==")[0])) not in left_out
        # without a list of imports, every package may have been used
        and (not imported or key in imported)
    ]
    digest = sha256_hex("".join(lines).encode())
    return environment.model_copy(update={"parts": {**environment.parts, PACKAGES: digest}})


def _unlike(ranks: Mapping[int, Environment]) -> Iterator[UnlikeRank]:
    """Yield each part in which a rank differs from the first rank."""
    first = next(iter(ranks.values()))
    for number, rank in ranks.items():
        for part in rank.moved(first):
            values, expected = _plain((rank.part(part), first.part(part)))
            versions = {}
            if part == PACKAGES and rank.packages and first.packages:
                values, expected = _named(first, rank), ""
                versions = _versions(first, rank)
            yield UnlikeRank(
                rank=number,
                part=plain_text(part)[:100],
                found=values,
                expected=expected,
                versions=versions,
            )


def _versions(first: Environment, rank: Environment) -> dict[str, str]:
    """Return the packages that both ranks imported in different versions.

    A package that only one of the ranks has is not a conflict.
    """
    both = set(map(normalized_name, first.imported)) & set(map(normalized_name, rank.imported))
    moves = (move for move in moved_packages(first, rank).counted if move.name in both)
    unlike = {move.name: move.compared for move in moves if move.before and move.after}
    return dict(islice(unlike.items(), MAX_NAMED))


def _named(first: Environment, rank: Environment) -> str:
    moves = [move.compared for move in moved_packages(first, rank).counted]
    more = f" and {len(moves) - MAX_NAMED} more" if len(moves) > MAX_NAMED else ""
    return f"{', '.join(moves[:MAX_NAMED])}{more}"[:MAX_UNLIKE_TEXT]
