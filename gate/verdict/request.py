"""The request: what code one call of the gate judges, by whose rules, and where it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.comparison.studies import StudyDocument
from gate.evidence.lock_files import NOTHING_BROUGHT, BroughtEnvironment
from gate.settings.event import SigningMethod
from gate.settings.gate_settings import GateSettings
from gate.settings.policy_change import PolicyChange
from gate.system.gate_names import DEFAULT_GATE
from gate.verdict.history_lines import History

NO_HISTORY: Final = History()


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRequest:
    """A call of the gate; everything that decides was already read from its trusted place (T2).

    Code: `commit` is None for the work tree at HEAD. `base_commit` is set when there is something
    to protect against. Settings and baseline then come from it. `base_branch` is the branch that
    the change is merged into, if the event names one. `project` is the folder of `repro-gate.yml`
    relative to the repository's root (POSIX, `.` for the root itself). `environment_change` is how
    the change moves the environment. `allow_dirty` is None for a call without that option.
    `uncommitted_policy` are policy files that no commit contains in this form.

    Call: `repeats` is the number of strict runs if the caller wants more than the settings.
    `nightly`: the call was not triggered by a pull request, a merge queue or a branch other than
    the default. `imported_runs`: another job made the runs. `sign` says what a pass is signed with.
    `settings_text` contains the bytes of the settings file as read, for the package.
    `credentials_left` are the keys of the clone's configuration that contain a credential. `study`
    is the study of exactly this commit for the package. `typed_config` and `typed_out` are the
    options as the caller typed them, empty for none: a command that the caller types next repeats
    them.

    Reports: `on_runner`: `top` is a path that means nothing to readers of the reports. `history`
    has earlier runs. `baseline_reason` goes into the entry that this call proposes. `named_gate` is
    the id that the workflow gives, which takes precedence over the settings'. `artifact` is what
    the workflow calls its upload, empty for the usual name.
    """

    top: Path
    project: str
    config_name: str
    settings: GateSettings
    settings_text: bytes
    settings_from: str
    out: Path
    commit: str | None = None
    base_commit: str | None = None
    base_branch: str = ""
    allow_dirty: bool | None = None
    pull_request: bool = False
    environment_change: BroughtEnvironment = NOTHING_BROUGHT
    policy_changes: tuple[PolicyChange, ...] = ()
    credentials_left: tuple[str, ...] = ()
    from_fork: bool = False
    imported_runs: bool = False
    repository: str = ""
    run_url: str = ""
    baseline_reason: str = ""
    on_runner: bool = False
    sign: SigningMethod = SigningMethod.KEY
    history: History = NO_HISTORY
    repeats: int | None = None
    nightly: bool = True
    named_gate: str = ""
    artifact: str = ""
    study: StudyDocument | None = None
    uncommitted_policy: tuple[str, ...] = ()
    typed_config: str = ""
    typed_out: str = ""

    @property
    def gate_id(self) -> str:
        """The id that distinguishes this gate from others of its repository."""
        return self.named_gate or self.settings.report.gate_id

    @property
    def gate_of_settings(self) -> str:
        """The id in the settings file; empty for the default.

        A workflow may give each leg of a matrix its own id, but all legs share one baseline.
        """
        own = self.settings.report.gate_id
        return "" if own == DEFAULT_GATE else own

    @property
    def shown_out(self) -> Path:
        """The output folder as a reader can use it: relative to a clone, or an absolute path."""
        # A path inside the container means nothing to a reader of the comment.
        return self.out.relative_to(self.top) if self.on_runner else self.out

    @property
    def strict_runs(self) -> int:
        """The number of strict runs that this call makes."""
        return self.repeats or self.settings.repeats

    @property
    def priced(self) -> bool:
        """Whether this call makes default runs, which show the cost of determinism."""
        when = self.settings.cost.when
        return when == "always" or (when == "nightly" and self.nightly)

    @property
    def one_may_do(self) -> bool:
        """Whether this call may stop after one strict run if that run equals the baseline."""
        asked = self.settings.runs.when_reproduced == "one" and self.repeats is None
        # A cost measurement needs two runs, and a nightly call checks that they still repeat.
        return asked and not self.nightly and not self.priced

    @property
    def may_answer(self) -> bool:
        """Whether this call may end without a run if nothing that the training gets has changed."""
        asked = self.settings.runs.unaffected == "answer" and self.settings_from == "base"
        return asked and self.pull_request and self.repeats is None and not self.nightly

    @property
    def resumes(self) -> bool:
        """Whether this call interrupts a run and resumes it."""
        resume = self.settings.resume
        return resume is not None and (resume.when == "always" or self.nightly)

    @property
    def recorded_runs(self) -> int:
        """The number of equal strict runs that a baseline entry needs."""
        return max(self.strict_runs, self.settings.baseline.record_repeats)

    @property
    def by_own_rules(self) -> bool:
        """Whether the change under test is judged by its own settings.

        A seal would then certify rules that nobody approved. A token or login would be sent to a
        place that those settings name (T2).
        """
        return self.pull_request and self.settings_from == "head"

    def repository_path(self, relative: str) -> str:
        """Return a path of the settings relative to the repository's root."""
        return relative if self.project == "." else f"{self.project}/{relative}"
