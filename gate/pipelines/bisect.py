"""Find the commit between a good and a bad one that moved the result or made it nondeterministic.

Every commit trains under the settings of the work tree, with the isolation of a gate call. Two runs
that differ prove a commit nondeterministic. Equal runs may be luck, so a commit counts as good only
after enough of them. The spread of the bad commit's results says how many are enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.comparison.checks import first_not_finite
from gate.comparison.compare import compare_results, distinct_results, equal_results, missed_share
from gate.data.data_sets import unrepeated_data
from gate.errors import CommitError, EvidenceError, RunError, SettingsError
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.pipelines.adapters import Adapters
from gate.pipelines.commit_runs import CommitRuns, Runs, numbered, offered_evidence
from gate.pipelines.diagnose import KeptDiagnosis, Retold, diagnose_kept
from gate.pipelines.kept_evidence import KeptEvidence
from gate.pipelines.snapshots import claim_out
from gate.settings.load import settings_digest, training_digest
from gate.system.git.objects import CommitFacts
from gate.text.document import Document, Timestamp
from gate.text.phrases import count
from gate.training.runs import Commit
from gate.verdict.blind_spots import RARE
from gate.verdict.facts import answer_of
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Answer

BISECT_SCHEMA: Final = "repro-gate.bisect/1"
MAX_COMMITS: Final = 10_000
# a rate counts only after 3 deviating runs, out of 5 runs or more
STRUCK: Final = 3
LEAST_SAMPLE: Final = 5
PAIR: Final = 2
SHORT: Final = 12
NOT_RESUMED: Final = (
    " bisect resumes no run: for a resume that differs, gate the commits between the two ends."
)
WITHIN: Final = frozenset((Answer.EQUAL, Answer.INSIDE, Answer.REFUSED))
MAX_TEXT: Final = 1000
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


class Sought(StrEnum):
    """What the bad commit has and the good one lacks: a different result, or several results."""

    RESULT = "result"
    NONDETERMINISM = "nondeterminism"


class CommitAnswer(StrEnum):
    """What the search found about one commit."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"


class JudgedCommit(Document):
    """A commit that was judged. `reused` counts those of its `runs` that an earlier call made."""

    commit: Hash
    subject: Text
    answer: CommitAnswer
    runs: int = Field(ge=0)
    reused: int = Field(default=0, ge=0)
    why: Text = ""


class Culprit(Document):
    """The commit that caused the change; `against` is the good neighbour that it was compared with.

    `changed` are the files that differ between the two.
    """

    commit: Hash
    author: Text
    committed_at: Annotated[str, Field(max_length=40)]
    subject: Text
    against: Hash
    changed: tuple[str, ...]


class Bisection(Document):
    """The document of `repro-gate bisect`: the `culprit`, or the commits `left` to choose from.

    More than one commit is left if skipped commits hide the culprit. A commit counted as good after
    `needed_runs` equal runs. `strikes` is the share of the bad commit's `sample` runs that differ
    from its most frequent result. `confidence` is the probability that no commit was called good by
    luck, for a fault that strikes this often. Both are None if every trained commit gave one result
    in all its runs.
    """

    schema_version: Literal["repro-gate.bisect/1"] = BISECT_SCHEMA
    created_at: Timestamp
    good: Hash
    bad: Hash
    first_parent: bool
    sought: Sought
    culprit: Culprit | None
    left: tuple[Hash, ...] = ()
    judged: tuple[JudgedCommit, ...]
    needed_runs: int = Field(ge=1)
    sample: int = Field(ge=1)
    strikes: float | None = Field(default=None, ge=0, le=1)
    confidence: float | None = Field(default=None, ge=0, le=1)
    settings_digest: str
    training_digest: str
    isolation: Text
    diagnosis: KeptDiagnosis | None = None
    notes: tuple[Text, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectCall:
    """The arguments of a bisection; `good`, `bad` and `skip` are full hashes."""

    good: str
    bad: str
    skip: frozenset[str] = frozenset()
    first_parent: bool = False
    within_tolerance: bool = False
    confidence: float = 0.95
    max_runs: int = 50
    evidence: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Bisected:
    """The document, and the culprit's diagnosis against its neighbour, if there is a culprit."""

    document: Bisection
    retold: Retold | None


def bisect(request: GateRequest, adapters: Adapters, call: BisectCall) -> Bisected:
    """Find the culprit; trained evidence is kept below `--out` and reused by later calls.

    Raises `SettingsError` if the two ends do not differ, or are no proper ends. If the training of
    an end fails, its error is raised.
    """
    suspects = _checked_ends(adapters, call)
    claim_out(request.out, adapters.files)
    offered = offered_evidence(request, adapters, call.evidence)
    config = request.repository_path(request.config_name)
    search = _Search(
        request,
        adapters,
        call,
        CommitRuns(request, adapters, offered),
        uncommitted=config in adapters.git.changed_files(),
    )
    return search.run(suspects)


def _checked_ends(adapters: Adapters, call: BisectCall) -> int:
    """Return how many commits may be the culprit.

    Raises `SettingsError` for ends without a commit between them.
    """
    git, good, bad = adapters.git, call.good, call.bad
    # raises for a shallow clone, which does not contain the commits in between
    git.commits_of(bad, max_commits=1)
    if good == bad:
        raise SettingsError(
            f"--good and --bad are the same commit, {good[:SHORT]}", hint="Name two commits."
        )
    base = git.merge_base(good, bad)
    if base != good:
        swapped = " They are the wrong way round." if base == bad else ""
        shared = "" if base is None else f" Their merge base is {base[:SHORT]}."
        raise SettingsError(
            f"--good {good[:SHORT]} is not an ancestor of --bad {bad[:SHORT]}.{swapped or shared}",
            hint="Name a good commit that the bad one contains.",
        )
    suspects = git.suspects(bad, (good,), first_parent=call.first_parent)
    if not suspects:
        raise SettingsError(
            f"--good {good[:SHORT]} is not on the first-parent line of --bad {bad[:SHORT]}",
            hint="Leave out --first-parent, or name a good commit of the branch itself.",
        )
    if len(suspects) > MAX_COMMITS:
        raise SettingsError(
            f"there are {len(suspects):,} commits between the two, the limit is {MAX_COMMITS:,}",
            hint="Name a later good commit, or give --first-parent.",
        )
    return len(suspects)


def expected_share(most_frequent: int, runs: int) -> float:
    """Return the probability of the most frequent result, by Laplace's rule of succession."""
    return (most_frequent + 1) / (runs + 2)


def needed_runs(most_frequent: int, runs: int, *, confidence: float, commits: int) -> int:
    """Return how many equal runs make a commit good, given the spread of the bad commit's results.

    Of `runs` runs of the bad commit, `most_frequent` gave the same result. If one run gives it with
    probability q, n runs are all equal with probability q^(n-1) at most. The allowed risk is
    divided by `commits`, the number of commits that may be called good.
    """
    share = expected_share(most_frequent, runs)
    # solve commits * q^(n-1) <= 1 - confidence for n
    return max(PAIR, 1 + math.ceil(math.log((1 - confidence) / max(1, commits)) / math.log(share)))


def most_frequent_result(runs: Runs) -> int:
    """Return how many runs gave the most frequent result."""
    return max((sum(equal_results(run, other) for other in runs) for run in runs), default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ends:
    """What the runs of the two ends show."""

    good: RunEvidence
    sought: Sought
    needed: int
    sample: int
    most_frequent: int


@contextmanager
def _end(option: str, commit: str) -> Iterator[None]:
    """Add to an error in the body which end's training failed."""
    try:
        yield
    except (RunError, EvidenceError, CommitError) as fault:
        hint = f"Name a commit that trains under this repro-gate.yml. {fault.hint}".strip()
        raise type(fault)(
            f"the training of {option} {commit[:SHORT]} failed: {fault.message}",
            hint=hint,
            details=fault.details,
        ) from fault


@dataclass(slots=True)
class _Search:
    request: GateRequest
    adapters: Adapters
    call: BisectCall
    runs: CommitRuns
    # read before the first training: afterwards the gate does not ask git about the work tree
    uncommitted: bool
    judged: dict[str, JudgedCommit] = field(default_factory=dict)

    def run(self, suspects: int) -> Bisected:
        """Make the whole bisection."""
        ends = self._ends(suspects)
        good, bad = [self.call.good], self.call.bad
        while True:
            left = self._left(bad, good)
            # the bad end is judged already; a skipped commit stays among those that may be the
            # culprit
            untried = [
                candidate for candidate in left if candidate != bad and not self._skipped(candidate)
            ]
            if not untried:
                break
            # prefer a commit with enough earlier runs: judging it costs no training
            ready = (candidate for candidate in untried if self._known(candidate, ends))
            commit = next(ready, untried[0])
            self.adapters.progress.step(
                f"{count(len(left), 'commit')} left, about {math.ceil(math.log2(len(left)))} to "
                f"train: {self._shown(commit)}"
            )
            answer = self._answer(commit, ends)
            if answer is CommitAnswer.GOOD:
                good.append(commit)
            elif answer is CommitAnswer.BAD:
                bad = commit
        if len(left) > 1:
            return Bisected(document=self._document(ends, None, left), retold=None)
        return self._bisected(bad, good, ends)

    def _left(self, bad: str, good: Sequence[str]) -> tuple[str, ...]:
        first_parent = self.call.first_parent
        return self.adapters.git.suspects(bad, tuple(good), first_parent=first_parent)

    def _skipped(self, commit: str) -> bool:
        judged = self.judged.get(commit)
        failed = judged is not None and judged.answer is CommitAnswer.SKIPPED
        return failed or commit in self.call.skip

    def _shown(self, commit: str) -> str:
        return f"{commit[:SHORT]} {self.adapters.git.facts_of(commit).subject}"

    def _ends(self, suspects: int) -> _Ends:
        """Train both ends and find out what the bad one has that the good one lacks."""
        call, progress = self.call, self.adapters.progress
        least = self.request.strict_runs
        # the good end first: only a run shows the environment, and kept runs count only in that
        good = self._good_end(least, begin=True)
        progress.step(f"the bad end: {self._shown(call.bad)}")
        with _end("--bad", call.bad):
            bad = self._more(call.bad, least)
        # a bad end that repeats itself decides the search after `repeats` runs; otherwise the fault
        # is rare
        if self._not_finite(bad) or (
            distinct_results(bad) == 1 and not self._like(good[0], bad[0])
        ):
            ends = _Ends(
                good=good[0],
                sought=Sought.RESULT,
                needed=least,
                sample=len(bad),
                most_frequent=len(bad),
            )
        else:
            ends = self._rare(good[0], suspects)
        self._mark(call.good, CommitAnswer.GOOD, "given as good")
        self._mark(call.bad, CommitAnswer.BAD, "given as bad")
        return ends

    def _good_end(self, runs: int, *, begin: bool = False) -> Runs:
        """Return runs of the good end; raise `SettingsError` if it is bad itself."""
        commit = self.call.good
        with _end("--good", commit):
            if begin:
                self.adapters.progress.step(f"the good end: {self._shown(commit)}")
                self.runs.begin(commit, runs)
            good = self._more(commit, runs)
        results, not_finite = distinct_results(good), self._not_finite(good)
        if results > 1 or not_finite:
            why = not_finite or f"{count(len(good), 'run')} gave {results} results"
            raise SettingsError(
                f"both are bad: of --good {commit[:SHORT]}, {why}",
                hint="Name an earlier good commit.",
            )
        return good

    def _rare(self, good: RunEvidence, suspects: int) -> _Ends:
        """Measure how often the bad end differs from itself, and derive the number of runs needed.

        Raises `SettingsError` if none of its runs differs.
        """
        call, progress = self.call, self.adapters.progress
        self._refuse_other_faults()
        progress.step(
            f"how often does the bad end differ from itself? {call.max_runs} runs at most"
        )

        # at least five runs, even if three of them deviate earlier (docs/bisect.md)
        def enough(runs: Runs) -> bool:
            struck = len(runs) - most_frequent_result(runs)
            return len(runs) >= LEAST_SAMPLE and struck >= STRUCK

        with _end("--bad", call.bad):
            bad = tuple(self.runs.more(call.bad, call.max_runs, enough).runs)
        frequent, runs = most_frequent_result(bad), count(len(bad), "run")
        if frequent == len(bad):
            missed = missed_share(len(bad), RARE)
            raise SettingsError(
                f"both are good: {runs} of --bad {call.bad[:SHORT]} gave the result of --good "
                f"{call.good[:SHORT]}",
                hint=f"Name another bad commit, or a higher --max-runs: {runs} miss "
                f"{missed * 100:.0f} % of the faults that strike one run in ten."
                f"{NOT_RESUMED if self.request.settings.resume else ''}",
            )
        # a binary search judges about log2 of the commits; the good end is one more
        commits = 1 + math.ceil(math.log2(suspects + 1))
        needed = needed_runs(frequent, len(bad), confidence=call.confidence, commits=commits)
        ends = _Ends(
            good=good,
            sought=Sought.NONDETERMINISM,
            # with fewer runs than needed the document reports the lower confidence
            needed=min(needed, call.max_runs),
            sample=len(bad),
            most_frequent=frequent,
        )
        progress.step(
            f"{len(bad) - frequent} of {runs} of the bad end differ from the others: "
            f"{ends.needed} equal runs make a commit good"
        )
        # the good end needs as many equal runs as any other good commit
        self._good_end(ends.needed)
        return ends

    def _refuse_other_faults(self) -> None:
        """Raise `SettingsError` if the bad end fails by its preprocessing, which no run shows."""
        evidence = self.runs.of(self.call.bad).evidence
        if evidence is not None and evidence.unrepeated is not None:
            raise SettingsError(
                f"--bad {self.call.bad[:SHORT]} gives the result of --good, but "
                f"{unrepeated_data(evidence.unrepeated)}",
                hint="bisect compares what trainings give, not what preprocessing writes. Look at "
                "the commits that changed the preprocessing.",
            )

    def _more(self, commit: str, number: int) -> Runs:
        known = self.runs.more(commit, number, lambda runs: distinct_results(runs) > 1)
        return tuple(known.runs)

    def _not_finite(self, runs: Runs) -> str:
        allowed = self.request.settings.compare.allow_not_finite
        number = first_not_finite(runs, allowed)
        return "" if number is None else f"{number.name} is not finite"

    def _like(self, good: RunEvidence, run: RunEvidence) -> bool:
        if equal_results(good, run):
            return True
        if not self.call.within_tolerance:
            return False
        settings = self.request.settings
        compared = compare_results(good, run, settings.compare, ("good", run.run.label))
        return answer_of(compared, settings) in WITHIN

    def _why_bad(self, runs: Runs, ends: _Ends) -> str:
        if not runs:
            return ""
        results, not_finite = distinct_results(runs), self._not_finite(runs)
        if not_finite or results > 1:
            return not_finite or f"{count(len(runs), 'run')} gave {results} results"
        if ends.sought is Sought.RESULT and not self._like(ends.good, runs[0]):
            return "gave a different result than the good end"
        return ""

    def _known(self, commit: str, ends: _Ends) -> bool:
        runs = tuple(self.runs.of(commit).runs)
        # one difference proves a commit bad, while good takes all the runs
        return len(runs) >= ends.needed or bool(self._why_bad(runs, ends))

    def _answer(self, commit: str, ends: _Ends) -> CommitAnswer:
        """Judge a commit as good or bad, or skip it because its training fails."""
        try:
            known = self.runs.more(
                commit, ends.needed, lambda runs: bool(self._why_bad(runs, ends))
            )
        except (RunError, EvidenceError, CommitError) as fault:
            self._mark(commit, CommitAnswer.SKIPPED, f"its training failed: {fault.message}")
            return CommitAnswer.SKIPPED
        why = self._why_bad(tuple(known.runs), ends)
        answer = CommitAnswer.BAD if why else CommitAnswer.GOOD
        self._mark(commit, answer, why or f"gave one result in {count(len(known.runs), 'run')}")
        return answer

    def _mark(self, commit: str, answer: CommitAnswer, why: str) -> None:
        known = self.runs.of(commit)
        self.judged[commit] = JudgedCommit(
            commit=commit,
            subject=self.adapters.git.facts_of(commit).subject,
            answer=answer,
            runs=len(known.runs),
            reused=len(known.runs) - known.fresh,
            why=why[:MAX_TEXT],
        )
        self.adapters.progress.step(f"{commit[:SHORT]} is {answer.value}: {why}")

    def _bisected(self, commit: str, good: Sequence[str], ends: _Ends) -> Bisected:
        """Describe the culprit against its good neighbour: changed files and first divergence."""
        git = self.adapters.git
        facts = git.facts_of(commit)
        neighbour = self._neighbour(facts, good, ends)
        culprit = Culprit(
            commit=commit,
            author=facts.author,
            committed_at=facts.committed_at,
            subject=facts.subject,
            against=neighbour,
            changed=git.changed_between(neighbour, commit),
        )
        head, base = self.runs.of(commit), self.runs.of(neighbour)
        notes = []
        if len(facts.parents) > 1:
            notes.append(
                f"{commit[:SHORT]} is a merge: its commits from before the good end were not "
                "trained one by one"
            )
        if _locks(head.evidence) != _locks(base.evidence):
            notes.append(
                "it changes a lock file, and every commit was trained with the packages that are "
                "installed here"
            )
        document = self._document(ends, culprit, (), notes)
        if head.evidence is None:
            return Bisected(document=document, retold=None)
        # arrange the runs as in a gate call: the culprit as head, its neighbour as base
        runs = (*numbered(tuple(head.runs)), *numbered(tuple(base.runs[:1]), Commit.BASE))
        data = base.evidence.data if base.evidence is not None else ()
        both = head.evidence.model_copy(
            update={"runs": runs, "base_commit": neighbour, "base_data": data}
        )
        retold = diagnose_kept(KeptEvidence(evidence=both, settings=self.request.settings))
        return Bisected(document=document, retold=_against_the_neighbour(retold))

    def _neighbour(self, facts: CommitFacts, good: Sequence[str], ends: _Ends) -> str:
        """Return a good parent that has runs.

        A parent that only counts as good because a later commit is good gets its runs now.
        """
        trained = next((candidate for candidate in facts.parents if candidate in good), None)
        if trained is not None:
            return trained
        # a parent from before the good end lacks what the good end has, so it is not comparable
        for parent in facts.parents:
            descends = self.adapters.git.merge_base(self.call.good, parent) == self.call.good
            if descends and self._answer(parent, ends) is CommitAnswer.GOOD:
                return parent
        return self.call.good

    def _document(
        self,
        ends: _Ends,
        culprit: Culprit | None,
        left: Sequence[str],
        notes: Sequence[str] = (),
    ) -> Bisection:
        strikes = confidence = None
        if ends.sought is Sought.NONDETERMINISM:
            strikes = (ends.sample - ends.most_frequent) / ends.sample
            share = expected_share(ends.most_frequent, ends.sample)
            good = (trial for trial in self.judged.values() if trial.answer is CommitAnswer.GOOD)
            # the risk that any good commit was called good by luck, at most the sum of the single
            # risks
            confidence = max(0.0, 1 - sum(share ** (trial.runs - 1) for trial in good))
        if self.uncommitted:
            name = self.request.config_name
            notes = (*notes, f"every commit was trained under {name} as it is, uncommitted")
        return Bisection(
            created_at=self.adapters.clock.now().isoformat(),
            good=self.call.good,
            bad=self.call.bad,
            first_parent=self.call.first_parent,
            sought=ends.sought,
            culprit=culprit,
            left=tuple(left),
            judged=tuple(self.judged.values()),
            needed_runs=ends.needed,
            sample=ends.sample,
            strikes=strikes,
            confidence=confidence,
            settings_digest=settings_digest(self.request.settings),
            training_digest=training_digest(self.request.settings),
            isolation=self.runs.isolation,
            notes=tuple(notes),
        )


def _against_the_neighbour(retold: Retold) -> Retold:
    """Replace the project's baseline in the diagnosis by the good neighbour."""
    verdict = retold.verdict
    if verdict is not None and verdict.base_run is not None:
        verdict = verdict.model_copy(update={"baseline": verdict.base_run, "base_run": None})
    return retold.model_copy(update={"verdict": verdict, "missing": ()})


def _locks(evidence: EvidenceSet | None) -> dict[str, str]:
    return {} if evidence is None else {lock.path: lock.sha256 for lock in evidence.locks}
