"""Which of the recorded sources may make results differ: those that are not the same in both."""

from __future__ import annotations

from collections.abc import Iterator

from gate.evidence.observations import Source, SourceKind
from gate.evidence.run_evidence import RunEvidence

ORDERS = frozenset((SourceKind.ORDER, SourceKind.COMPLETION))
# a split is advice: it is drawn alike in both runs
COMPARED = ORDERS | {SourceKind.PRECISION, SourceKind.READ, SourceKind.SPLIT}
# what a verdict does not cover, and what belongs beside a change: none makes two runs differ
NOT_COVERED = frozenset((SourceKind.VARIABLE, SourceKind.SAVED, SourceKind.OPENED))
# as many of a kind as a process tells; see gate/harness/sources/found.py
MOST_OF_A_KIND = 40
MAX_WORDS = 200
# of other runs than those that are judged, where only a training that forges them has them
SHAKEN = frozenset((SourceKind.VARIED, SourceKind.READING))


def suspected_sources(strict: tuple[RunEvidence, ...]) -> tuple[Source, ...]:
    """What may make two runs of one commit differ.

    An order, a switch of precision and a file, only where the runs differ in it.
    """
    if len(strict) < 2:  # noqa: PLR2004 - a difference takes two
        return ()
    first, second = strict[:2]
    passed_over = COMPARED | SHAKEN | NOT_COVERED
    differing = (
        source for source in first.sources if source.kind not in passed_over and source.file
    )
    return (
        *_other_reads(first, second),
        *_other_orders(first, second),
        *_other_precision(first, second),
        *differing,
    )


def changed_precision(run: RunEvidence, base: RunEvidence | None) -> tuple[Source, ...]:
    """Switches of precision that a commit turns on its way, and the base does not.

    Without a run of the base only those that are turned after the first step: what a script sets at
    its start it most often did before, too.
    """
    turned = [source for source in run.sources if source.kind is SourceKind.PRECISION]
    if base is not None:
        known = set(map(_turn, base.sources))
        return tuple(source for source in turned if _turn(source) not in known)
    return tuple(source for source in turned if source.step > 1)


def _turn(source: Source) -> tuple[object, ...]:
    """Without its line: a commit moves lines."""
    return source.kind, source.rank, source.step, source.call, source.before, source.after


def _other_precision(first: RunEvidence, second: RunEvidence) -> tuple[Source, ...]:
    both = ((first, second), (second, first))
    return tuple(source for run, other in both for source in changed_precision(run, other))


def _other_orders(first: RunEvidence, second: RunEvidence) -> tuple[Source, ...]:
    """Directories of the same names, and the same pieces of work, in another order."""
    orders = {_ordered(source): source.after for source in second.sources}
    return tuple(
        source
        for source in first.sources
        if source.kind in ORDERS
        and _in_another_order(source.after, orders.get(_ordered(source), source.after))
    )


def _in_another_order(one: str, other: str) -> bool:
    """Whether the digests differ; of pieces told one by one, whether the same came in both."""
    several = " " in one
    return one != other and (not several or sorted(one.split()) == sorted(other.split()))


def _other_reads(first: RunEvidence, second: RunEvidence) -> Iterator[Source]:
    """Files that changed between the runs, and those that only one of them read.

    `before` and `after` are what they were in each, empty where it was not read.
    """
    both = tuple(map(_reads, (first, second)))
    stamps = [
        {path: sorted({one.after for one in lines if one.stamp}) for path, lines in reads.items()}
        for reads in both
    ]
    # where some were left out, what one run lacks it may have read all the same
    every = not any(map(_some_left_out, both))
    for path in dict.fromkeys((*both[0], *both[1])):
        was, now = (known.get(path, []) for known in stamps)
        if was != now and (every or (was and now)):
            line = (both[0].get(path) or both[1][path])[0]
            words = {
                "before": " and ".join(was)[:MAX_WORDS],
                "after": " and ".join(now)[:MAX_WORDS],
            }
            yield line.model_copy(update=words)


def _reads(run: RunEvidence) -> dict[str, list[Source]]:
    reads: dict[str, list[Source]] = {}
    for source in run.sources:
        if source.kind is SourceKind.READ:
            reads.setdefault(source.call, []).append(source)
    return reads


def _some_left_out(reads: dict[str, list[Source]]) -> bool:
    lines = sum(map(len, reads.values()))
    return lines >= MOST_OF_A_KIND or any(path.endswith("/") for path in reads)


def _ordered(source: Source) -> tuple[object, ...]:
    return source.kind, source.rank, source.place, source.call, source.before
