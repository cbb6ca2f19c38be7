"""Answer an audit of a repository, from what was found in it without running anything."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from gate.audit.items import (
    WEAKENED,
    AuditedPart,
    AuditFact,
    AuditItem,
    AuditReport,
    AuditSubject,
    RepositoryFacts,
    fact,
    failed_item,
    first,
    next_command,
    part_answers,
    passed_item,
    unknown,
    weakened,
)
from gate.audit.repository_lines import lines_configuration, lines_data, lines_seeds
from gate.evidence.lock_files import LockFile
from gate.settings.gate_settings import FILE_NAME
from gate.system.version import VERSION
from gate.text.phrases import count
from gate.training.environment import CPU, DEVICE, Environment

RECORD: Final = 'repro-gate baseline record --reason "first baseline"'
COMPILE: Final = "uv pip compile --generate-hashes"
LOCKED_BY: Final = "python -m pip install uv && "
# Maps an imported name to the packages that provide it: pip's name first, then conda's and forks'.
LIBRARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": ("torch", "pytorch", "pytorch-cpu", "pytorch-gpu"),
    "torchvision": ("torchvision",),
    "numpy": ("numpy", "numpy-base"),
    "pandas": ("pandas",),
    "scipy": ("scipy",),
    "sklearn": ("scikit-learn",),
    "transformers": ("transformers",),
    "accelerate": ("accelerate",),
    "datasets": ("datasets",),
    "lightning": ("lightning",),
    "pytorch_lightning": ("pytorch-lightning",),
}
TRUST_FILE: Final = ".repro-gate/trusted-keys.json"
NOT_KNOWN: Final = (
    "Scripts were read, not run: a reported line may never execute.",
    "Whether two runs are equal: `repro-gate gate` runs them.",
)


def audit_repository(facts: RepositoryFacts) -> AuditReport:
    """Return the report with all seven parts."""
    items = (
        *_code(facts),
        *_environment(facts),
        *lines_data(facts),
        *(_gate(facts) if facts.has_gate else (_not_set_up(),)),
        *lines_configuration(facts),
        *lines_seeds(facts),
    )
    unread = (
        f"Not read (not Python of this version, a link, or too large): {first(facts.unreadable)}."
    )
    not_known = (
        *NOT_KNOWN,
        *([facts.incomplete] if facts.incomplete else ()),
        *([unread] if facts.unreadable else ()),
    )
    return AuditReport(
        version=VERSION,
        subject=AuditSubject.REPOSITORY,
        place=facts.place,
        parts=part_answers(items),
        items=items,
        facts=_facts(facts),
        not_known=not_known,
    )


def _gate(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    """Check configuration, hardware and seals in the gate's own files."""
    return (*_configuration(facts), *_hardware(facts), *_seals(facts))


def _not_set_up() -> AuditItem:
    """Return the one item for a repository without the gate; more items would say no more."""
    return failed_item(
        AuditedPart.CONFIGURATION,
        "not-set-up",
        f"there is no {FILE_NAME}, baseline, trusted key or workflow of repro-gate",
        risk="Command, steps, tolerances and machine are in somebody's head or shell history, and "
        "nothing detects a change that moves the numbers.",
        remedy="Set up the gate. Then audit again: it names what is still missing.",
        command="repro-gate init",
    )


def _code(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part = AuditedPart.CODE
    if not facts.commit:
        return (
            failed_item(
                part,
                "commit",
                facts.git_problem or "there is no commit",
                risk="Nobody can say which code produced a number, so nobody can run it again.",
                remedy="Put the code into a commit.",
                command='git init && git add --all && git commit -m "first commit"',
            ),
        )
    items = [passed_item(part, "commit", f"commit {facts.commit[:12]}")]
    if facts.changed:
        items.append(
            failed_item(
                part,
                "clean-tree",
                f"{len(facts.changed):,} uncommitted: {first(facts.changed)}",
                risk="A number produced with these files belongs to no commit.",
                remedy="Commit them, or add what is not code to .gitignore.",
                command='git add --all && git commit -m "what the numbers rest on"',
            )
        )
    else:
        items.append(passed_item(part, "clean-tree", "nothing is uncommitted"))
    if facts.script_missing:
        items.append(
            failed_item(
                part,
                "training-script",
                f"train.command names {facts.script_missing}, which is not there",
                risk="The code that runs is not what the settings name.",
                remedy=f"Name a script of the commit in train.command of {FILE_NAME}.",
            )
        )
    return tuple(items)


def _environment(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    items = [*_locks(facts)]
    if facts.images:
        items.append(
            failed_item(
                AuditedPart.ENVIRONMENT,
                "image-digest",
                f"base image without a digest: {first(facts.images)}",
                risk="A tag moves: next month's build has different libraries and different "
                "numbers.",
                remedy="Write the digest that this command prints after the name, as in "
                "`FROM python:3.11@sha256:…`.",
                command=f"docker buildx imagetools inspect {shlex.quote(facts.images[0])}",
            )
        )
    return tuple(items)


def _locks(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part, code = AuditedPart.ENVIRONMENT, "lock-file"
    locks = sorted(facts.locks, key=lambda lock: lock.path)
    broken = [lock for lock in locks if lock.problem]
    sound = [lock for lock in locks if not lock.problem]
    risk = "Another library version may change the number, and nobody would notice."
    remedy = (
        "Make and commit a lock file: requirements with hashes, as this command writes them, "
        "uv.lock, poetry.lock or Pipfile.lock. Versions without hashes, as `pip freeze` prints "
        "them, are not enough."
    )
    if broken:
        answer = f"{broken[0].path} cannot be read: {broken[0].problem}"
        remedy = "Regenerate the lock file with the tool that made it."
        return (failed_item(part, code, answer, risk=risk, remedy=remedy),)
    unlocked = _unlocked(facts, sound)
    if sound and unlocked:
        answer = f"{first([lock.path for lock in sound])} locks no {first(unlocked)}, which the "
        return (
            failed_item(
                part,
                code,
                f"{answer}scripts import",
                risk=risk,
                remedy="Add it to the requirements and regenerate the lock file.",
                command=f"{LOCKED_BY}printf '%s\\n' {' '.join(unlocked)} | {COMPILE} - -o "
                "requirements-more.txt",
            ),
        )
    if sound:
        packages = sum(len(lock.packages) for lock in sound)
        names = first([lock.path for lock in sound])
        return (passed_item(part, code, f"{names}: {count(packages, 'package')}"),)
    loose = [wish for wish in facts.wishes if wish.unpinned]
    answer = "there is no lock file"
    if loose:
        answer += f", and {loose[0].path} names no version of {first(loose[0].unpinned)}"
    source = next((wish.path for wish in (*loose, *facts.wishes) if _compiles(wish.path)), "")
    frozen = "" if source else "python -m pip freeze --all > requirements.txt && "
    source = source or "requirements.txt"
    command = f"{frozen}{LOCKED_BY}{COMPILE} {source} -o requirements-lock.txt"
    return (failed_item(part, code, answer, risk=risk, remedy=remedy, command=command),)


def _unlocked(facts: RepositoryFacts, locks: list[LockFile]) -> list[str]:
    """Return well-known libraries that the scripts import but no lock file names."""
    locked = {package.name for lock in locks for package in lock.packages}
    libraries = sorted(LIBRARIES.keys() & facts.modules)
    return [LIBRARIES[name][0] for name in libraries if locked.isdisjoint(LIBRARIES[name])]


def _compiles(path: str) -> bool:
    """Return whether a path needs no quoting, and `uv pip compile` can read the file."""
    plain = path.isascii() and all(sign.isalnum() or sign in "._-/" for sign in path)
    return plain and not path.startswith("-") and path.endswith((".txt", ".toml"))


def _configuration(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    return (*_settings(facts), *_baseline(facts), _workflow(facts))


def _settings(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part, code = AuditedPart.CONFIGURATION, "settings"
    settings = facts.settings
    if settings is None:
        problem = facts.settings_problem
        return (
            failed_item(
                part,
                code,
                problem or f"there is no {FILE_NAME}",
                risk="Command, steps and tolerances are in somebody's head or shell history.",
                remedy=f"Correct {FILE_NAME}."
                if problem
                else "Write the settings and commit them.",
                command=next_command(facts),
            ),
        )
    items = [passed_item(part, code, f"{FILE_NAME}: {settings.train.max_steps:,} steps")]
    weak = weakened(settings)
    if weak:
        items.append(
            failed_item(
                part,
                "strict-mode",
                f"strict mode is weakened: {first(weak)}",
                risk=WEAKENED,
                remedy=f"Remove it from determinism in {FILE_NAME}.",
            )
        )
    else:
        items.append(passed_item(part, "strict-mode", "strict runs set every determinism knob"))
    return tuple(items)


def _baseline(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part, code = AuditedPart.CONFIGURATION, "baseline"
    if facts.baseline is not None and facts.baseline.entries:
        entries = facts.baseline.entries
        runs = min(entry.equal_runs for entry in entries)
        answer = f"a baseline of {count(len(entries), 'recording')}, {runs} equal runs each"
        return (passed_item(part, code, answer),)
    problem = facts.baseline_problem
    return (
        failed_item(
            part,
            code,
            problem or "no baseline is committed",
            risk="Nothing detects a change that moves the numbers.",
            remedy="Restore it from version control." if problem else "Record one and commit it.",
            command=_record(facts),
        ),
    )


def _workflow(facts: RepositoryFacts) -> AuditItem:
    part, code = AuditedPart.CONFIGURATION, "workflow"
    if facts.workflow:
        return passed_item(part, code, f"{facts.workflow} calls repro-gate")
    return unknown(
        part,
        code,
        "no workflow in .github calls repro-gate; other CI systems are not visible from here",
        risk="Without a check on every change, a regression goes unnoticed.",
        remedy="Run the gate on every pull request: this writes a workflow.",
        command="repro-gate init",
    )


def _hardware(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part, code = AuditedPart.HARDWARE, "machine"
    entries = facts.baseline.entries if facts.baseline is not None else ()
    bare = [entry for entry in entries if not {DEVICE, CPU} <= entry.environment.parts.keys()]
    if entries and not bare:
        devices = sorted({_machine(entry.environment) for entry in entries})
        return (passed_item(part, code, f"the baseline names the machine: {first(devices)}"),)
    return (
        failed_item(
            part,
            code,
            "the baseline does not say where it was made"
            if entries
            else "nothing records which machine produced a number",
            risk="Another GPU, driver or thread count changes the last digits, or more.",
            remedy="Record a baseline where the numbers are produced; it names the machine.",
            command=_record(facts),
        ),
    )


def _record(facts: RepositoryFacts) -> str:
    """Return the command that records and commits a baseline, or first what that needs."""
    if facts.settings is None:
        return next_command(facts)
    path = shlex.quote(facts.settings.baseline.path)
    return f'{RECORD} && git add {path} && git commit -m "first baseline"'


def _new_key(facts: RepositoryFacts) -> str:
    """Return a command that makes a key outside the repository, and a trust file inside it."""
    file = facts.settings.signing.trusted_keys if facts.settings is not None else TRUST_FILE
    folder = shlex.quote(PurePosixPath(file).parent.as_posix())
    return (
        "read -rs REPRO_GATE_PASSPHRASE && export REPRO_GATE_PASSPHRASE && "
        f"repro-gate keys generate --out ../gate-keys && mkdir -p {folder} && "
        f"cp ../gate-keys/trusted-keys.json {shlex.quote(file)}"
    )


def _machine(environment: Environment) -> str:
    """Return the GPUs, or the CPU's model without a GPU."""
    return environment.part(CPU if environment.part(DEVICE) == CPU else DEVICE)


def _seals(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part, code = AuditedPart.SEALS, "trusted-keys"
    if facts.active_keys:
        return (
            passed_item(part, code, f"{count(facts.active_keys, 'active key')} in the trust file"),
        )
    problem = facts.keys_problem
    return (
        failed_item(
            part,
            code,
            problem or "no key is trusted",
            risk="A result can be changed after the run, and nobody would notice.",
            remedy="Generate a key with a pass phrase, keep its private half in the CI's secrets, "
            "and commit its trust file.",
            command="repro-gate keys list" if problem else _new_key(facts),
        ),
    )


def _facts(facts: RepositoryFacts) -> tuple[AuditFact, ...]:
    known: list[tuple[str, object]] = [("commit", facts.commit), ("training", facts.training)]
    known.append(("locks", first([lock.path for lock in facts.locks if not lock.problem])))
    settings = facts.settings
    if settings is not None:
        known += [
            ("command", " ".join(settings.train.command)),
            ("max_steps", settings.train.max_steps),
            ("seed", settings.train.seed),
            ("data", first([source.name for source in settings.data])),
            ("resume_setting", settings.resume.checkpoint if settings.resume else ""),
            (
                "history",
                settings.publish.history or ("a branch" if settings.report.history else ""),
            ),
        ]
    entry = facts.baseline.entries[0] if facts.baseline and facts.baseline.entries else None
    if entry is not None:
        known += [
            ("strict_runs", entry.equal_runs),
            ("seeds_run", len({result.seed for result in entry.seeded})),
            ("packages", entry.environment.installed),
        ]
        known += [(name, entry.environment.part(name)) for name in ("python", "torch")]
        known += [(name, entry.environment.part(name)) for name in ("device", "cpu", "os")]
    return tuple(fact(name, value) for name, value in known if value not in ("", 0))
