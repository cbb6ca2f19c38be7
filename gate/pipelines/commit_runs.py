"""Strict runs of many commits under one set of settings; each run is kept and reused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gate.data.data_sets import DataSets, same_data
from gate.errors import GateError
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.pipelines.adapters import Adapters
from gate.pipelines.kept_evidence import KeptEvidence, open_kept_evidence
from gate.pipelines.prepared import prepare
from gate.pipelines.trainings import Trainings
from gate.settings.data import DataKind
from gate.settings.load import settings_digest
from gate.settings.train_sections import MAX_LANES
from gate.system.version import VERSION
from gate.text.digests import sha256_hex
from gate.text.documents import RecordForm
from gate.text.json_text import canonical_json
from gate.training.lanes import in_groups
from gate.training.runs import Commit, PlannedRun, RunMode, label_of
from gate.verdict.request import GateRequest

KEPT: Final = "commits"
MAX_CALLS: Final = 1000
PLACE_DIGITS: Final = 16
FORM: Final[RecordForm[KeptEvidence]] = RecordForm(KeptEvidence)
Runs = tuple[RunEvidence, ...]


@dataclass(kw_only=True, slots=True)
class Known:
    """The known runs of one commit; this call made `fresh` of them."""

    runs: list[RunEvidence] = field(default_factory=list)
    fresh: int = 0
    evidence: EvidenceSet | None = None


class CommitRuns:
    """The strict runs of commits, kept below `--out` by settings, environment and data.

    Only a run shows which environment this is, so a call has to `begin` with one. Evidence of a
    gate call counts too, if its settings are the same and neither a part of its environment nor the
    data outside the commits moved.
    """

    def __init__(
        self, request: GateRequest, adapters: Adapters, offered: Sequence[EvidenceSet] = ()
    ) -> None:
        """Train nothing yet."""
        self._request = request
        self._adapters = adapters
        self._offered = offered
        self._known: dict[str, Known] = {}
        self._place: Path | None = None
        self._first: RunEvidence | None = None
        self._data: DataSets = ()
        self.isolation = ""

    @property
    def kept(self) -> Path:
        """The folder of kept runs, for all environments."""
        return self._request.out / KEPT

    def begin(self, commit: str, count: int) -> RunEvidence:
        """Train a commit to learn the environment; its kept runs count from then on.

        Raises the error of a failed training.
        """
        # with nothing kept, no run can be reused, so make all runs in one turn
        fresh = 1 if self._adapters.files.exists(self.kept) else count
        known = self._train(commit, fresh, lambda _: False)
        first = known.runs[0]
        self._data = outside_the_commit(known.evidence.data if known.evidence else ())
        self._leave_out_other_data()
        data = {data_set.name: data_set.sha256 for data_set in self._data}
        # runs of another version of the gate are not reused
        facts = (settings_digest(self._request.settings), first.environment.parts, VERSION, data)
        name = sha256_hex(canonical_json(facts))[:PLACE_DIGITS]
        self._place = self.kept / name
        self._first = first
        self._keep_all()
        self.of(commit).fresh = known.fresh
        return first

    def _leave_out_other_data(self) -> None:
        """Leave out offered evidence with other data, which says nothing about runs here."""
        for evidence in self._offered:
            if not same_data(outside_the_commit(evidence.data), self._data):
                self._adapters.progress.step(
                    f"the evidence of {evidence.commit[:12]} is left out: the declared data "
                    "changed since"
                )
        self._offered = tuple(
            evidence
            for evidence in self._offered
            if same_data(outside_the_commit(evidence.data), self._data)
        )

    def of(self, commit: str) -> Known:
        """Return all runs of a commit that count here, the oldest first."""
        if commit not in self._known:
            self._known[commit] = self._looked_up(commit)
        return self._known[commit]

    def more(self, commit: str, count: int, enough: Callable[[Runs], bool]) -> Known:
        """Train a commit until it has `count` runs, or until `enough` accepts its runs.

        Raises the error of a failed training, after keeping the runs before it.
        """
        known = self.of(commit)
        missing = count - len(known.runs)
        if missing > 0 and not enough(tuple(known.runs)):
            before = tuple(known.runs)
            try:
                made = self._train(commit, missing, lambda runs: enough((*before, *runs)))
            # also after a failure: what was trained is kept
            finally:
                self._keep_all()
            known.runs += made.runs
            known.fresh += made.fresh
            known.evidence = made.evidence
        return known

    def _train(self, commit: str, count: int, enough: Callable[[Runs], bool]) -> Known:
        request = replace(self._request, commit=commit, base_commit=None)
        planned = tuple(
            PlannedRun(label=label_of(RunMode.STRICT, number), mode=RunMode.STRICT)
            for number in range(1, count + 1)
        )
        made: list[RunEvidence] = []
        evidence: EvidenceSet | None = None
        with prepare(request, self._adapters, at_a_time=min(count, MAX_LANES)) as prepared:
            trainings = Trainings(prepared)
            groups = in_groups(planned, trainings.at_a_time)
            try:
                with closing(trainings.in_turns(groups)) as turns:
                    for turn in turns:
                        made += turn
                        if enough(tuple(made)):
                            break
            finally:
                # keep what there is, so that a stopped call can be continued
                if made:
                    evidence = trainings.ended.evidence(tuple(made))
            self.isolation = trainings.ended.isolation.described
        return Known(runs=made, fresh=len(made), evidence=evidence)

    def _keep_all(self) -> None:
        """Move the documents of the newest training to the kept runs.

        Saved states are left out, because comparing results needs none.
        """
        files, source = self._adapters.files, self._request.out / "evidence"
        if self._place is None or not files.exists(source / "manifest.json"):
            return
        evidence = _read(self._adapters, source).evidence
        folder = self._place / evidence.commit
        # calls are numbered, so that earlier runs of the same commit are not replaced
        number = len(self._calls(folder)) + 1
        names = [f"{run.run.label}/evidence.json" for run in evidence.runs]
        target = folder / f"{number:04}"
        files.fresh_folder(target)
        # the manifest comes last: a folder without one is incomplete and is skipped
        for name in ("set.json", *names, "manifest.json"):
            files.fresh_folder((target / name).parent) if "/" in name else None
            files.move_file(source / name, target / name)
        files.remove_tree(source)

    def _calls(self, folder: Path) -> tuple[str, ...]:
        files = self._adapters.files
        if not files.exists(folder):
            return ()
        return tuple(sorted(files.list_names(folder, max_names=MAX_CALLS)))

    def _looked_up(self, commit: str) -> Known:
        known, first = Known(), self._first
        # a call begins with a run; tells the checker
        assert self._place is not None and first is not None  # noqa: S101, PT018 - see above
        folder = self._place / commit
        for name in self._calls(folder):
            try:
                evidence = _read(self._adapters, folder / name).evidence
            except GateError as fault:
                step = f"kept runs of {commit[:12]} are passed over: {fault.message}"
                self._adapters.progress.step(step)
                continue
            self._add(known, evidence, commit)
        for evidence in self._offered:
            # evidence from another environment says nothing about runs here
            if not any(first.environment.moved(run.environment) for run in evidence.runs):
                self._add(known, evidence, commit)
        return known

    def _add(self, known: Known, evidence: EvidenceSet, commit: str) -> None:
        # evidence of uncommitted files is of no commit
        if evidence.commit != commit or evidence.changed_files:
            return
        known.runs += evidence.runs_of(RunMode.STRICT)
        known.evidence = evidence


def outside_the_commit(data: DataSets) -> DataSets:
    """Return the data sets that no commit decides: files of the machine, named by their path.

    A pointer, or what preprocessing writes, may differ from commit to commit on purpose.
    """
    return tuple(data_set for data_set in data if data_set.kind is DataKind.PATH)


def numbered(runs: Runs, commit: Commit = Commit.HEAD) -> Runs:
    """Return runs of several calls relabelled as the strict runs of one commit in one call."""
    return tuple(
        run.model_copy(
            update={
                "run": run.run.model_copy(
                    update={"commit": commit, "label": label_of(RunMode.STRICT, number, commit)}
                )
            }
        )
        for number, run in enumerate(runs, 1)
    )


def _read(adapters: Adapters, place: Path) -> KeptEvidence:
    """Read kept evidence in a confined child, because a commit under test wrote its content."""
    return read_apart(
        FORM,
        lambda: open_kept_evidence(adapters.files, place),
        what=str(place),
        seconds=reading_seconds(place),
        answer_bytes=LARGE_ANSWER_BYTES,
    )


def offered_evidence(
    request: GateRequest, adapters: Adapters, places: Sequence[Path]
) -> tuple[EvidenceSet, ...]:
    """Return the evidence of gate calls that trained under the same settings.

    Raises `EvidenceError` for a place without evidence. Evidence of other settings is left out with
    a message.
    """
    offered: list[EvidenceSet] = []
    for place in places:
        evidence = _read(adapters, place).evidence
        if evidence.settings_digest != settings_digest(request.settings):
            adapters.progress.step(f"{place} is left out: it was made under other settings")
            continue
        offered.append(evidence)
    return tuple(offered)
