"""What one call of the gate is about: which code, judged by whose rules, written where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.evidence.lock_files import NOTHING_BROUGHT, BroughtEnvironment
from gate.settings.event import SigningMethod
from gate.settings.gate_settings import GateSettings
from gate.settings.policy_change import PolicyChange
from gate.system.gate_names import DEFAULT_GATE
from gate.verdict.history import History

NO_HISTORY: Final = History()


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRequest:
    """A call of the gate, with everything that decides already read from its trusted place.

    `project` is the folder of `repro-gate.yml` relative to the repository's root (POSIX, `.` for
    the root itself). `commit` None means the work tree at HEAD. `base_commit` is set when there is
    something to protect against: then settings and baseline come from there; `base_branch` is the
    branch that the change is to be merged into, where the event names one. `settings_text` holds
    the bytes of the settings file as read, for the package. `credentials_left` names the keys of
    the clone's configuration that hold a credential. `imported_runs`: another job made the runs.
    `baseline_reason` goes into the entry that this call proposes. `on_runner`: `top` is a path that
    means nothing to who reads the reports. `environment_change`: what the change under test moves
    of the environment. `sign` says what a pass is signed with. `history`: earlier runs, for the
    reports. `named_gate`: the gate's id where the workflow gives one, which goes before that of the
    settings; `artifact`: what it calls its upload, empty for the usual name.
    `study`: the `study.json` of this very commit that goes into the package, empty for none.
    `repeats`: strict runs to make, where the caller wants more than the settings. `nightly`: no
    event of a pull request, a merge queue or a branch other than the default one is the reason for
    the call. `uncommitted_policy`: files that judge this call and are in no commit as they are.
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
    allow_dirty: bool = False
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
    study: bytes = b""
    uncommitted_policy: tuple[str, ...] = ()

    @property
    def gate_id(self) -> str:
        """What tells this gate from the others of its repository."""
        return self.named_gate or self.settings.report.gate_id

    @property
    def gate_of_settings(self) -> str:
        """The id in the settings file; empty for the usual one.

        A workflow may give each leg of a matrix another, and all of them have one baseline.
        """
        own = self.settings.report.gate_id
        return "" if own == DEFAULT_GATE else own

    @property
    def shown_out(self) -> Path:
        """The output folder as a reader can use it: in their own clone, or where it is here."""
        # a path of the container means nothing to a reader of the comment
        return self.out.relative_to(self.top) if self.on_runner else self.out

    @property
    def strict_runs(self) -> int:
        """How many strict runs this call makes."""
        return self.repeats or self.settings.repeats

    @property
    def priced(self) -> bool:
        """Whether this call makes default runs, which show what determinism costs."""
        when = self.settings.cost.when
        return when == "always" or (when == "nightly" and self.nightly)

    @property
    def one_may_do(self) -> bool:
        """Whether this call may stop after one strict run, where that equals the baseline."""
        asked = self.settings.runs.when_reproduced == "one" and self.repeats is None
        # what is measured, and what runs at night, takes two
        return asked and not self.nightly and not self.priced

    @property
    def may_answer(self) -> bool:
        """Whether this call may end without a run, where nothing that the training gets changed."""
        asked = self.settings.runs.unaffected == "answer" and self.settings_from == "base"
        return asked and self.pull_request and self.repeats is None and not self.nightly

    @property
    def resumes(self) -> bool:
        """Whether this call interrupts a run and resumes it."""
        resume = self.settings.resume
        return resume is not None and (resume.when == "always" or self.nightly)

    @property
    def recorded_runs(self) -> int:
        """How many equal strict runs an entry of the baseline has to rest on."""
        return max(self.strict_runs, self.settings.baseline.record_repeats)

    @property
    def by_own_rules(self) -> bool:
        """Whether the change under test brings the settings that it is judged by.

        A seal would say that it kept rules which nobody approved, and a token or login would go
        to where they say (T2).
        """
        return self.pull_request and self.settings_from == "head"

    def repository_path(self, relative: str) -> str:
        """A path of the settings as the repository sees it."""
        return relative if self.project == "." else f"{self.project}/{relative}"
