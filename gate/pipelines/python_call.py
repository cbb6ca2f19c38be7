"""A gate call from Python: a test's command and settings on top of repro-gate.yml."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from gate.baseline.entry import MAX_REASON
from gate.baseline.folder import write_entries
from gate.errors import SettingsError
from gate.isolation.confined_look import read_apart
from gate.pipelines.adapters import Adapters
from gate.pipelines.call_setup import (
    LocalCall,
    config_inside,
    request_for,
)
from gate.pipelines.delivery import DeliveredVerdict
from gate.pipelines.doctor.commit_checks import COMMIT_OR_IGNORE
from gate.pipelines.policy_files import work_tree_baseline
from gate.pipelines.proposals import accepted, last_proposal
from gate.pipelines.settings_file import find_config, nearest_settings, settings_bytes
from gate.settings.gate_settings import FILE_NAME, GateSettings
from gate.settings.load import parse_settings, training_settings
from gate.system.files.port import Files
from gate.system.gate_names import DEFAULT_GATE, MAX_ID
from gate.system.git.repository import Git, GitRepository
from gate.text.document import Argv, Document, command_words
from gate.text.documents import RecordForm
from gate.text.json_text import reviewable_json
from gate.text.strict_yaml import parse_yaml
from gate.verdict.request import GateRequest

ARGUMENTS: Final = "repro-gate.yml with the arguments of the call"
OWN_FOLDER: Final = ".repro-gate/"
SHOWN: Final = 10
LINE: Final = re.compile(r"^line \d+: ")
NO_SETTINGS: Final = b"version: 1\n"


class PythonCall(Document):
    """The arguments of a test or a notebook; all but `start` go on top of the settings file.

    `start` is the folder from which the settings file is searched. `settings` has keys of that
    file. `gate_id` and `out` are derived from the command if they are empty. `update` accepts the
    result as the baseline, with `reason`.
    """

    start: str
    command: Argv | None = None
    max_steps: int | None = None
    config: str = ""
    gate_id: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    out: str = ""
    update: bool = False
    reason: Annotated[str, Field(max_length=MAX_REASON)] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnSettings:
    """The project's settings file: its path below the root and its content, if it is `there`."""

    path: Path
    text: bytes
    there: bool


def python_request(call: PythonCall, files: Files) -> GateRequest:
    """Return the request of a call from Python.

    A call that trains what the settings file trains shares its baseline. Any other call gets a gate
    id and a baseline of its own, so that many tests of one repository do not collide.
    """
    start = Path(call.start)
    repository = GitRepository(start)
    own = _own_settings(call, start, repository, files)
    changes = _changes(call)
    if not own.there and "command" not in changes["train"]:
        raise SettingsError(
            f"no command to train, and no {FILE_NAME} at the root of the repository or in {start}",
            hint='Name both: assert_reproducible("python train.py", max_steps=20).',
        )
    settings = _settings_apart(own, changes, call.gate_id)
    gate_id = settings.report.gate_id
    folder = "" if gate_id == DEFAULT_GATE else f"-{gate_id}"
    # updating a baseline changes files of it, which must not block the next update
    changed = _changed_beside_baselines(repository)
    if changed and call.update:
        raise SettingsError(
            "a baseline names a commit, and the work tree has uncommitted changes",
            hint=f"{COMMIT_OR_IGNORE}. Then update again.",
            details=changed[:SHOWN],
        )
    local = LocalCall(
        config=call.config,
        start=start,
        out=Path(call.out or f"repro-gate-out{folder}"),
        base="",
        commit="" if changed else "HEAD",
        # a test is about the work in progress
        allow_dirty=True,
    )
    text = reviewable_json(settings.model_dump(mode="json", by_alias=True, exclude_unset=True))
    request = request_for(local, repository, own.path, text.encode(), settings)
    return replace(request, nightly=False, baseline_reason=call.reason)


def accept_result(
    request: GateRequest, adapters: Adapters, delivered: DeliveredVerdict, reason: str, who: str
) -> tuple[str, ...]:
    """Write the result of a call into the baseline; return the written paths, none if it is equal.

    Raises `BaselineError` if the result must not become a baseline.
    """
    if delivered.verdict.passes or not delivered.proposed_target:
        return ()
    before = work_tree_baseline(request, adapters)
    after = accepted(request, adapters, last_proposal(request, adapters), reason, who)
    folder = request.repository_path(request.settings.baseline.path)
    written = write_entries(adapters.files, request.top / folder, before, after)
    return tuple(f"{folder}/{name}" for name in written)


def test_gate_id(command: tuple[str, ...]) -> str:
    """Return the id of a call without one: the command's words, with a digest if they are long."""
    text = " ".join(command)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "test"
    # the plain words are unique only if no character was replaced and nothing cut off
    if plain == text.replace(" ", "-") and len(plain) <= MAX_ID:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{plain[: MAX_ID - 9]}-{digest}"


def _own_settings(
    call: PythonCall, start: Path, repository: GitRepository, files: Files
) -> OwnSettings:
    top = repository.top_level()
    config = find_config(call.config, start, top) if call.config else nearest_settings(start)
    if config is None:
        return OwnSettings(
            path=config_inside(start / FILE_NAME, top), text=NO_SETTINGS, there=False
        )
    path = config_inside(config, top)
    text = settings_bytes(top / path, files)
    return OwnSettings(path=path, text=text, there=True)


def _changes(call: PythonCall) -> dict[str, Any]:
    _refuse_two_answers(call)
    train: dict[str, Any] = {}
    if call.command is not None:
        train["command"] = list(call.command)
    if call.max_steps is not None:
        train["max_steps"] = call.max_steps
    # a test does not ask what determinism costs, and measuring it takes two more trainings
    return _joined({"cost": {"when": "never"}, "train": {}}, call.settings, {"train": train})


def _refuse_two_answers(call: PythonCall) -> None:
    """Raise `SettingsError` if an argument and the settings of one call disagree."""
    section = call.settings.get("train")
    own = section if isinstance(section, dict) else {}
    if call.max_steps is not None and own.get("max_steps", call.max_steps) != call.max_steps:
        name = "max_steps"
    elif call.command is not None and not _same_command(own.get("command"), call.command):
        name = "command"
    else:
        return
    raise SettingsError(
        f"{name} is given twice: as an argument, and otherwise as train.{name} of settings",
        hint="Leave one of the two out.",
    )


def _same_command(other: object, command: tuple[str, ...]) -> bool:
    if other is None:
        return True
    try:
        words = list(command_words(other)) if isinstance(other, str) else other
    except ValueError:
        return False
    return isinstance(words, list) and tuple(words) == command


def _joined(*documents: dict[str, Any]) -> dict[str, Any]:
    """Merge the documents key by key; a list or value of a later one replaces the earlier."""
    joined: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            known = joined.get(key)
            if isinstance(known, dict) and isinstance(value, dict):
                joined[key] = _joined(known, value)
            else:
                joined[key] = value
    return joined


def _settings_apart(own: OwnSettings, changes: dict[str, Any], gate_id: str) -> GateSettings:
    """Return the settings file with the changes, parsed in a confined child.

    If the training is the file's own, the file's gate id applies. Any other training gets an id and
    a baseline of its own.
    """
    form: RecordForm[GateSettings] = RecordForm(GateSettings)

    def merged() -> GateSettings:
        keys, _ = parse_yaml(own.text, FILE_NAME)
        document = keys if isinstance(keys, dict) else {}
        settings = _parsed(_joined(document, changes))
        same = own.there and training_settings(
            parse_settings(own.text, str(own.path))
        ) == training_settings(settings)
        if same and not gate_id:
            return settings
        name = gate_id or test_gate_id(settings.train.command)
        named = {
            "report": {"gate_id": name},
            "baseline": {"path": f"{OWN_FOLDER}{name}/baseline"},
        }
        # the call's own settings come last, so that they can still name another baseline
        return _parsed(_joined(document, named, changes))

    return read_apart(form, merged, what=ARGUMENTS)


def _parsed(document: dict[str, Any]) -> GateSettings:
    try:
        return parse_settings(reviewable_json(document).encode(), ARGUMENTS)
    except SettingsError as fault:
        # the user never sees this generated text, so its line numbers would mislead
        fault.details = tuple(LINE.sub("", detail) for detail in fault.details)
        raise


def _changed_beside_baselines(git: Git) -> tuple[str, ...]:
    """Return uncommitted changes outside baselines, which no training reads."""
    return tuple(path for path in git.changed_files() if f"/{OWN_FOLDER}" not in f"/{path}")
