"""A game day: plant faults into copies of a project and check what the gate reports.

Each copy is a separate repository below `--out`. A baseline is recorded in it without the fault.
Then the fault is planted, and the gate is called as its user calls it. The project itself stays
untouched.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.baseline.entry import MAX_BASELINE_BYTES, BaselineEntry
from gate.baseline.folder import files_in, read_entries, write_entries
from gate.baseline.record import with_digest
from gate.errors import EvidenceError, GateError, RunError, SettingsError
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart
from gate.package.seal_records import TrustedKeys
from gate.pipelines.adapters import Adapters
from gate.pipelines.gameday_faults import (
    COMMON,
    DECLARED,
    FAULTS,
    MARK,
    MODULE,
    NOISE,
    NOTHING,
    SCRIPT,
    SETTINGS,
    WRAPPER,
    Fault,
    Way,
)
from gate.settings.gate_settings import FILE_NAME, BaselineSettings
from gate.system.files.port import Files
from gate.system.git.command import GitCommand
from gate.system.own_program import OwnCall, call_gate
from gate.text.document import Document, Timestamp
from gate.text.documents import RecordForm, read_document
from gate.verdict.request import GateRequest
from gate.verdict.verdict import FailureMode, Outcome, Verdict

GAMEDAY_SCHEMA: Final = "repro-gate.gameday/1"
OUT_OF_GATE: Final = "repro-gate-out"
VERDICT: Final = "verdict.json"
MAX_OUTPUT_BYTES: Final = 64 * 1024 * 1024
MAX_NAMES: Final = 1000
MAX_TREE_BYTES: Final = 16 * 1024**3
# git refuses to commit without a name and an address
IDENTITY: Final = ("user.name=repro-gate gameday", "user.email=gameday@localhost")
# the key of a game day lives only in its copy, so its passphrase is no secret
PASSPHRASE: Final = ("REPRO_GATE_PASSPHRASE", "for the length of a game day")
# the environment of the entry that stands for another machine: older than any version in use
OTHER: Final = {"F3": ("torch", "1.13.1"), "node-upgrade": ("driver", "470.57.02")}
Text = Annotated[str, Field(max_length=2000)]


class PlayedFault(Document):
    """The result of one fault.

    `caught` is true if the check failed, or passed as it should and named what moved. `named` is
    true if outcome and failure mode are right. `alerted` is true if exit code and comment of the
    job report the outcome. `own` is true if the fault was planted into a copy of the user's
    project; otherwise `why_built_in` says why not. `planted` is false if planting failed, or the
    training never does what the fault changes. `wall_seconds` is the time of the gate call.
    """

    code: Text
    title: Text
    way: Text
    own: bool
    why_built_in: Text = ""
    planted: bool
    caught: bool = False
    named: bool = False
    alerted: bool = False
    outcome: Text = ""
    failure_mode: FailureMode = FailureMode.NONE
    runbook: Text = ""
    exit_code: int | None = None
    wall_seconds: float = Field(default=0.0, ge=0)
    note: Text = ""

    @property
    def good(self) -> bool:
        """Whether the fault was planted and the gate reacted correctly in every respect."""
        return self.planted and self.caught and self.named and self.alerted


class Gameday(Document):
    """The document of `repro-gate gameday`.

    `why_built_in` says why no copy of the project was used.
    """

    schema_version: Literal["repro-gate.gameday/1"] = GAMEDAY_SCHEMA
    created_at: Timestamp
    commit: Text
    why_built_in: Text = ""
    faults: tuple[PlayedFault, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Site:
    """A copy with a committed baseline; `modules` are the files that its script imports first.

    A module is in every folder that Python may search for it.
    """

    folder: Path
    config: str
    own: bool
    modules: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    outcome: str
    passes: bool
    failure_mode: FailureMode
    runbook: str
    cause: str


FORM: Final[RecordForm[_Answer]] = RecordForm(_Answer)


def chosen_faults(only: str | None) -> tuple[Fault, ...]:
    """Return the faults that `--only` names, or all; raise `SettingsError` for an unknown name."""
    if only is None:
        return FAULTS
    hint = f"Name some of {', '.join(fault.code for fault in FAULTS)}."
    names = {name.strip().lower() for name in only.split(",") if name.strip()}
    if not names:
        raise SettingsError("--only names no fault", hint=hint)
    unknown = names - {fault.code.lower() for fault in FAULTS}
    if unknown:
        wrong = ", ".join(sorted(unknown))
        raise SettingsError(f"--only {wrong[:100]}: there is no such fault", hint=hint)
    return tuple(fault for fault in FAULTS if fault.code.lower() in names)


class Play:
    """Plants faults one after the other; `variables` are the environment of the gate calls."""

    def __init__(
        self,
        request: GateRequest,
        adapters: Adapters,
        variables: Mapping[str, str],
        *,
        built_in: bool,
    ) -> None:
        """Copy nothing yet."""
        self._request = request
        self._adapters = adapters
        self._files: Files = adapters.files
        self._variables = {**variables, PASSPHRASE[0]: PASSPHRASE[1]}
        self._commit = request.commit or adapters.git.resolve("HEAD")
        self._sites: dict[str, _Site] = {}
        self._why = "--built-in" if built_in else ""
        self._root = request.out / "copies"

    def run(self, faults: Sequence[Fault]) -> Gameday:
        """Plant all faults in their order; remove the copies at the end."""
        self._files.fresh_folder(self._root)
        try:
            played = tuple(self._fault(fault) for fault in faults)
        finally:
            self._files.remove_tree(self._root)
        return Gameday(
            created_at=self._adapters.clock.now().isoformat(),
            commit=self._commit,
            why_built_in=self._why,
            faults=played,
        )

    def _fault(self, fault: Fault) -> PlayedFault:
        self._adapters.progress.step(f"{fault.code}: {fault.title}")
        why = self._why
        if not why and not fault.any_project:
            why = "a training of its own is needed"
        if not why:
            site = self._own_site()
            if site is not None:
                played = self._played(fault, site)
                # planted is only known after the run: the training itself reports whether the fault
                # acted
                if played.planted:
                    return played
                why = f"{fault.code}: the training of this project never does what it changes"
            else:
                why = self._why
        try:
            played = self._played(fault, self._built_in(fault))
        except GateError as problem:
            # one fault failed to be planted; the others are still planted
            played = _not_planted(fault, problem.message)
        return played.model_copy(update={"why_built_in": why[:2000]})

    def _own_site(self) -> _Site | None:
        """Return a copy of the project, or None after storing the reason in `_why`."""
        if "own" not in self._sites:
            try:
                self._sites["own"] = self._copied_project()
            except (GateError, OSError) as fault:
                self._why = fault.message if isinstance(fault, GateError) else str(fault)
                self._adapters.progress.step(f"the built-in training is used: {self._why}")
                return None
        return self._sites["own"]

    def _copied_project(self) -> _Site:
        request, folder = self._request, self._root / "own"
        self._files.fresh_folder(folder)
        self._adapters.git.export_commit(self._commit, folder)
        workdir = folder / request.repository_path(request.settings.train.workdir)
        script = self._script(workdir, request.settings.train.command)
        # the wrapper imports the planted module and then runs the original script unchanged
        text = self._files.read_bytes(script, max_bytes=MAX_OUTPUT_BYTES)
        self._files.write_bytes(script.with_name(f"{script.name}.original"), text)
        self._files.write_bytes(script, WRAPPER.encode())
        modules = tuple(dict.fromkeys((script.parent / MODULE, workdir / MODULE)))
        config = request.repository_path(request.config_name)
        # the project's baseline is of other files, so a new one is recorded for the copy
        self._files.remove_tree(folder / request.repository_path(request.settings.baseline.path))
        site = _Site(folder=folder, config=config, own=True, modules=modules)
        return self._recorded(site, NOTHING)

    def _script(self, workdir: Path, command: Sequence[str]) -> Path:
        """Return the script that the command starts: a file, or the module after `-m`."""
        names = [word for word in command if word.endswith(".py")]
        for flag, module in pairwise(command):
            if flag == "-m":
                path = module.replace(".", "/")
                names += [f"{path}.py", f"{path}/__main__.py"]
        for name in names:
            if not Path(name).is_absolute() and self._files.exists(workdir / name):
                return workdir / name
        raise SettingsError(
            f"train.command starts no script of the commit: {shlex.join(command)}",
            hint="A game day changes the training script: name it in train.command.",
        )

    def _built_in(self, fault: Fault) -> _Site:
        """Return the small training that a fault needs, with its baseline.

        All faults without a `before` of their own share one training.
        """
        name = fault.code if fault.before else "common"
        if name in self._sites:
            return self._sites[name]
        folder = self._root / name
        self._files.fresh_folder(folder)
        extra = fault.extra
        if fault.way is Way.DATA:
            # outside of the copy, because declared data is not part of a commit
            self._files.write_bytes(self._data(name), _numbers(1.0))
            extra = DECLARED.format(place=self._data(name))
        settings = SETTINGS.format(command=fault.command, extra=extra)
        self._files.write_bytes(folder / FILE_NAME, settings.encode())
        modules: tuple[Path, ...] = ()
        if fault.before:
            self._files.write_bytes(folder / SCRIPT, fault.before.encode())
        else:
            self._files.write_bytes(folder / f"{SCRIPT}.original", COMMON.encode())
            self._files.write_bytes(folder / SCRIPT, WRAPPER.encode())
            modules = (folder / MODULE,)
        site = _Site(folder=folder, config=FILE_NAME, own=False, modules=modules)
        self._sites[name] = self._recorded(site, NOTHING)
        return self._sites[name]

    def _baseline(self, site: _Site) -> Path:
        own = self._request.settings.baseline if site.own else BaselineSettings()
        return (site.folder / site.config).parent / own.path

    def _data(self, name: str) -> Path:
        return self._root / f"{name}-data" / "data.txt"

    def _recorded(self, site: _Site, module: str) -> _Site:
        """Commit the site with this module and its baseline, and check that the gate passes it."""
        self._write_modules(site, module)
        if not self._files.exists(site.folder / ".git"):
            _git(site, "init", "--quiet", "--initial-branch=main")
        self._commit_all(site, "before")
        self._record(site)
        # without a passing control run, a failure after planting would prove nothing
        control = self._gate(site, "control")
        if control.code != 0:
            raise RunError(
                f"the copy does not pass before anything is planted: {control.fault or 'see gate'}"
            )
        return site

    def _record(self, site: _Site) -> None:
        words = ("baseline", "record", "--quiet", "--config", site.config, "--reason", "game day")
        recorded = self._call(site, *words)
        if recorded.code != 0:
            raise RunError(f"no baseline can be recorded in the copy: {recorded.fault}")
        self._commit_all(site, "baseline")

    def _write_modules(self, site: _Site, module: str) -> None:
        for path in site.modules:
            self._files.write_bytes(path, module.encode())

    def _commit_all(self, site: _Site, message: str) -> None:
        # force: planted files count even if the project's .gitignore matches them
        _git(site, "add", "--all", "--force", ".")
        # force also added the output folder of an earlier call
        _git(site, "reset", "--quiet", "--", OUT_OF_GATE)
        _git(site, "commit", "--quiet", "--allow-empty", "--message", message)

    def _call(self, site: _Site, *words: str) -> OwnCall:
        return call_gate(site.folder, self._variables, *words)

    def _gate(self, site: _Site, title: str, *words: str) -> OwnCall:
        """Make a new commit and judge it against the one before, as on a pull request."""
        self._files.write_bytes(site.folder / "repro-gate-gameday.txt", f"{title}\n".encode())
        self._commit_all(site, title)
        return self._judged(site, *words)

    def _judged(self, site: _Site, *words: str) -> OwnCall:
        """Call the gate, after removing the output of an earlier call.

        Otherwise a call that writes nothing would seem to give the earlier verdict.
        """
        self._files.remove_tree(site.folder / OUT_OF_GATE)
        gate = ("gate", "--quiet", "--config", site.config, "--base", "HEAD~1")
        return self._call(site, *gate, *words)

    def _played(self, fault: Fault, site: _Site) -> PlayedFault:
        """Plant a fault into a copy of the site and return what the gate reports."""
        copy = self._root / f"{fault.code}-copy"
        self._files.remove_tree(copy)
        self._files.copy_tree(site.folder, copy, max_bytes=MAX_TREE_BYTES)
        moved = tuple(copy / path.relative_to(site.folder) for path in site.modules)
        here = _Site(folder=copy, config=site.config, own=site.own, modules=moved)
        try:
            ways: Mapping[Way, Callable[[Fault, _Site], PlayedFault]] = {
                Way.COMMIT: self._by_commit,
                Way.OUTSIDE: self._from_outside,
                Way.BASELINE: self._by_baseline,
                Way.DATA: self._by_data,
                Way.KEY: self._by_key,
            }
            return ways[fault.way](fault, here)
        finally:
            self._files.remove_tree(copy)

    def _by_commit(self, fault: Fault, site: _Site) -> PlayedFault:
        if fault.module:
            self._write_modules(site, NOTHING + fault.module)
        else:
            self._files.write_bytes(site.folder / SCRIPT, fault.script.encode())
        call = self._gate(site, fault.title)
        return self._answered(fault, site, call, planted=not fault.module or self._acted(site))

    def _from_outside(self, fault: Fault, site: _Site) -> PlayedFault:
        place = self._root / "outside" / "scale.txt"
        self._files.write_bytes(place, b"1.0\n")
        self._write_modules(site, NOTHING + fault.module.format(place=str(place)))
        self._files.remove_tree(self._baseline(site))
        self._commit_all(site, "a file that nobody declared")
        self._record(site)
        self._files.write_bytes(place, b"1.5\n")
        # the code is that of the commit that the baseline was recorded from
        call = self._judged(site)
        return self._answered(fault, site, call, planted=self._acted(site))

    def _by_baseline(self, fault: Fault, site: _Site) -> PlayedFault:
        """Commit a baseline entry with another result that claims to be of another environment."""
        folder = self._baseline(site)
        # the planted noise with a fixed seed: a different result that repeats
        other = NOISE.replace("secrets.randbits(60)", "7")
        self._write_modules(site, NOTHING + other)
        self._files.remove_tree(folder)
        self._commit_all(site, "a different result")
        self._record(site)
        part, value = OTHER[fault.code]
        shown = folder.name
        before = read_entries(files_in(self._files, folder, shown), shown)
        if before is None:
            raise EvidenceError("the copy has no baseline to change")
        entries = tuple(_elsewhere(entry, part, value) for entry in before.entries)
        self._files.remove_tree(folder)
        write_entries(self._files, folder, None, before.model_copy(update={"entries": entries}))
        # without the noise again: the commit under test gives its usual result
        self._write_modules(site, NOTHING)
        self._commit_all(site, "the baseline of another environment")
        call = self._gate(site, fault.title)
        return self._answered(fault, site, call, planted=True)

    def _by_data(self, fault: Fault, site: _Site) -> PlayedFault:
        place = self._data(fault.code)
        if fault.code == "moved-data":
            self._files.write_bytes(place, _numbers(1.25))
        else:
            self._files.remove_tree(place)
        call = self._gate(site, fault.title)
        return self._answered(fault, site, call, planted=True)

    def _by_key(self, fault: Fault, site: _Site) -> PlayedFault:
        keys = self._root / "keys"
        trust = str(keys / "trusted-keys.json")
        made = self._call(site, "keys", "generate", "--out", str(keys))
        if made.code != 0:
            raise RunError(f"no key can be made: {made.fault}")
        sealed = self._gate(site, fault.title, "--signing-key", str(keys / "signing-key.pem"))
        package = f"{OUT_OF_GATE}/package.tar"
        words = ("verify", package, "--trusted-keys", trust, "--commit", self._head(site))
        # the package has to verify before the key is revoked, or the refusal would prove nothing
        if sealed.code != 0 or self._call(site, *words).code != 0:
            raise RunError(f"the copy's package is not sealed: {sealed.fault}")
        data = self._files.read_bytes(Path(trust), max_bytes=MAX_BASELINE_BYTES)
        key = read_document(TrustedKeys, data, trust).keys[0].key_id
        revoked = self._call(site, "keys", "revoke", key, "--trusted-keys", trust)
        call = self._call(site, *words)
        named = "revoked" in call.fault
        return PlayedFault(
            code=fault.code,
            title=fault.title,
            way=fault.way.value,
            own=site.own,
            planted=revoked.code == 0,
            caught=call.code != 0,
            named=named,
            alerted=call.code != 0 and bool(call.fault),
            outcome="refused" if call.code else "verified",
            exit_code=call.code,
            wall_seconds=call.wall_seconds,
            note=call.fault[:2000],
        )

    def _head(self, site: _Site) -> str:
        return _git(site, "rev-parse", "HEAD").decode("ascii").strip()

    def _acted(self, site: _Site) -> bool:
        """Decide whether a training printed that the planted code ran."""
        evidence = site.folder / OUT_OF_GATE / "evidence"
        if not self._files.exists(evidence):
            return False
        outputs = (
            evidence / name / "output.txt"
            for name in self._files.list_names(evidence, max_names=MAX_NAMES)
        )
        return any(
            MARK.encode() in self._files.read_bytes(path, max_bytes=MAX_OUTPUT_BYTES)
            for path in outputs
            if self._files.exists(path)
        )

    def _answered(self, fault: Fault, site: _Site, call: OwnCall, *, planted: bool) -> PlayedFault:
        out = site.folder / OUT_OF_GATE
        answer = _answer(self._files, out / VERDICT)
        shown = PlayedFault(
            code=fault.code,
            title=fault.title,
            way=fault.way.value,
            own=site.own,
            planted=planted,
            caught=call.code != 0,
            exit_code=call.code,
            wall_seconds=call.wall_seconds,
            note=call.fault[:2000],
        )
        if answer is None:
            return shown
        comment = out / "comment.md"
        text = b""
        if self._files.exists(comment):
            text = self._files.read_bytes(comment, max_bytes=MAX_OUTPUT_BYTES)
        right = answer.outcome in fault.outcomes and answer.failure_mode in fault.modes
        # a fault that has to pass with a remark must not fail the job: that would be a false alarm
        ended = (call.code == 0) is answer.passes is fault.passes
        part = OTHER.get(fault.code, ("", ""))[0] if fault.passes else ""
        return shown.model_copy(
            update={
                "caught": ended and answer.outcome != Outcome.REPRODUCED.value,
                "named": right and part in answer.cause,
                "alerted": ended and answer.outcome.encode() in text,
                "outcome": answer.outcome,
                "failure_mode": answer.failure_mode,
                "runbook": answer.runbook,
                "note": (answer.cause or call.fault)[:2000],
            }
        )


def _not_planted(fault: Fault, why: str) -> PlayedFault:
    return PlayedFault(
        code=fault.code,
        title=fault.title,
        way=fault.way.value,
        own=False,
        planted=False,
        note=why[:2000],
    )


def _answer(files: Files, path: Path) -> _Answer | None:
    """Return what a verdict reports, read in a confined child; None without a verdict."""
    if not files.exists(path):
        return None

    def look() -> _Answer:
        data = files.read_bytes(path, max_bytes=MAX_OUTPUT_BYTES)
        verdict = read_document(Verdict, data, VERDICT, max_bytes=MAX_OUTPUT_BYTES)
        return _Answer(
            outcome=verdict.outcome.value,
            passes=verdict.passes,
            failure_mode=verdict.failure_mode,
            runbook=verdict.runbook,
            cause=verdict.cause,
        )

    return read_apart(FORM, look, what=VERDICT, answer_bytes=LARGE_ANSWER_BYTES)


def _elsewhere(entry: BaselineEntry, part: str, value: str) -> BaselineEntry:
    parts = {**entry.environment.parts, part: value}
    where = entry.environment.model_copy(update={"parts": parts})
    return with_digest(entry.model_copy(update={"environment": where}))


def _numbers(scale: float) -> bytes:
    return "".join(f"{scale * number / 32}\n" for number in range(32)).encode()


def _git(site: _Site, *words: str) -> bytes:
    # git refuses a repository that another account owns, unless it is listed (safe.directory)
    trusted = (*IDENTITY, f"safe.directory={site.folder}")
    return GitCommand(site.folder, overrides=trusted).output(*words)
