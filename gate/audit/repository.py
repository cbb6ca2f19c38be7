"""The answers of an audit of a repository, from what was found in it; nothing of it was run."""

from __future__ import annotations

import shlex
from typing import Final

from gate.audit.items import counted, fact, failed, first, next_command, passed, unknown
from gate.audit.repository_lines import lines_configuration, lines_data, lines_seeds
from gate.records.determinism.knobs import Profile
from gate.records.observed.environment import CPU, DEVICE, Environment
from gate.records.published.audit import (
    AuditedPart,
    AuditFact,
    AuditItem,
    AuditReport,
    AuditSubject,
    part_answers,
)
from gate.records.published.audit_facts import RepositoryFacts
from gate.records.settings import FILE_NAME, GateSettings
from gate.records.version import VERSION

RECORD: Final = 'repro-gate baseline record --reason "first baseline"'
NOT_KNOWN: Final = (
    "Scripts were read and not run: a line that is named may never be reached.",
    "Whether two runs are equal: `repro-gate gate` runs them.",
)


def audit_repository(facts: RepositoryFacts) -> AuditReport:
    """All seven parts."""
    items = (
        *_code(facts),
        *_environment(facts),
        *lines_data(facts),
        *_configuration(facts),
        *lines_configuration(facts),
        *lines_seeds(facts),
        *_hardware(facts),
        *_seals(facts),
    )
    unread = (
        f"Not read, as no Python of this version, a link or too large: {first(facts.unreadable)}."
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


def _code(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part = AuditedPart.CODE
    if not facts.commit:
        return (
            failed(
                part,
                "commit",
                facts.git_problem or "there is no commit",
                risk="Nobody can say which code gave a number, so nobody can run it again.",
                remedy="Put the code into a commit.",
                command="git init && git add --all && git commit",
            ),
        )
    items = [passed(part, "commit", f"commit {facts.commit[:12]}")]
    if facts.changed:
        items.append(
            failed(
                part,
                "clean-tree",
                f"{len(facts.changed):,} uncommitted: {first(facts.changed)}",
                risk="A number that these files gave belongs to no commit.",
                remedy="Commit them, or let git ignore what is no code.",
                command="git add --all && git commit",
            )
        )
    else:
        items.append(passed(part, "clean-tree", "nothing is uncommitted"))
    if facts.script_missing:
        items.append(
            failed(
                part,
                "training-script",
                f"train.command names {facts.script_missing}, which is not there",
                risk="What is run is not what the settings say.",
                remedy=f"Correct train.command in {FILE_NAME}.",
                command="repro-gate doctor",
            )
        )
    return tuple(items)


def _environment(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    items = [*_locks(facts)]
    if facts.images:
        items.append(
            failed(
                AuditedPart.ENVIRONMENT,
                "image-digest",
                f"base image without a digest: {first(facts.images)}",
                risk="A tag moves: a build of next month has other libraries, and other numbers.",
                remedy="Name the image by its digest, as in `FROM python:3.11@sha256:…`.",
                command=f"docker buildx imagetools inspect {shlex.quote(facts.images[0])}",
            )
        )
    return tuple(items)


def _locks(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part, code = AuditedPart.ENVIRONMENT, "lock-file"
    locks = sorted(facts.locks, key=lambda lock: lock.path)
    broken = [lock for lock in locks if lock.problem]
    sound = [lock for lock in locks if not lock.problem]
    risk = "Another version of a library may give another number, and nobody sees that it moved."
    remedy = "Commit a lock file: uv.lock, poetry.lock, Pipfile.lock, or requirements with hashes."
    if broken:
        found = f"{broken[0].path} cannot be read: {broken[0].problem}"
        remedy = "Write the lock file anew with the tool that made it."
        return (failed(part, code, found, risk=risk, remedy=remedy),)
    if sound:
        packages = sum(len(lock.packages) for lock in sound)
        names = first([lock.path for lock in sound])
        return (passed(part, code, f"{names}: {counted(packages, 'package')}"),)
    loose = [wish for wish in facts.wishes if wish.unpinned]
    found = "there is no lock file"
    if loose:
        found += f", and {loose[0].path} names no version of {first(loose[0].unpinned)}"
    source = next((wish.path for wish in (*loose, *facts.wishes) if _compiles(wish.path)), "")
    command = f"uv pip compile --generate-hashes {source} -o requirements-lock.txt"
    command = command if source else "pip freeze > requirements.txt"
    return (failed(part, code, found, risk=risk, remedy=remedy, command=command),)


def _compiles(path: str) -> bool:
    """Whether it may stand in a command as it is, and the tool reads it."""
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
            failed(
                part,
                code,
                problem or f"there is no {FILE_NAME}",
                risk="Command, steps and tolerances live in somebody's head or shell.",
                remedy=f"Correct {FILE_NAME}."
                if problem
                else "Write the settings and commit them.",
                command=next_command(facts),
            ),
        )
    items = [passed(part, code, f"{FILE_NAME}: {settings.train.max_steps:,} steps")]
    weak = _weakened(settings)
    if weak:
        items.append(
            failed(
                part,
                "strict-mode",
                f"strict mode is weakened: {first(weak)}",
                risk="Two runs may differ although nothing changed, or be equal by luck.",
                remedy=f"Take it out of determinism in {FILE_NAME}, or say in the report why not.",
                command="repro-gate operators",
            )
        )
    else:
        items.append(passed(part, "strict-mode", "strict runs set every determinism knob"))
    return tuple(items)


def _weakened(settings: GateSettings) -> tuple[str, ...]:
    determinism = settings.determinism
    weak = [f"allow_operators: {name}" for name in determinism.allow_operators]
    if determinism.profile is not Profile.STRICT:
        weak.append(f"profile: {determinism.profile.value}")
    return tuple(weak)


def _baseline(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part, code = AuditedPart.CONFIGURATION, "baseline"
    if facts.baseline is not None and facts.baseline.entries:
        entries = facts.baseline.entries
        runs = min(entry.equal_runs for entry in entries)
        found = f"a baseline of {counted(len(entries), 'recording')}, {runs} equal runs each"
        return (passed(part, code, found),)
    problem = facts.baseline_problem
    return (
        failed(
            part,
            code,
            problem or "no baseline is committed",
            risk="A change that moves the numbers has nothing to be compared with.",
            remedy="Restore it from version control." if problem else "Record one and commit it.",
            command=RECORD if facts.settings is not None else next_command(facts),
        ),
    )


def _workflow(facts: RepositoryFacts) -> AuditItem:
    part, code = AuditedPart.CONFIGURATION, "workflow"
    if facts.workflow:
        return passed(part, code, f"{facts.workflow} calls repro-gate")
    return unknown(
        part,
        code,
        "no workflow of .github calls repro-gate; another CI cannot be seen from here",
        risk="What nobody runs on each change goes wrong between two checks.",
        remedy="Run the gate on every pull request.",
        command=next_command(facts),
    )


def _hardware(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part, code = AuditedPart.HARDWARE, "machine"
    entries = facts.baseline.entries if facts.baseline is not None else ()
    bare = [entry for entry in entries if not {DEVICE, CPU} <= entry.environment.parts.keys()]
    if entries and not bare:
        devices = sorted({_machine(entry.environment) for entry in entries})
        return (passed(part, code, f"the baseline names the machine: {first(devices)}"),)
    return (
        failed(
            part,
            code,
            "the baseline does not say where it was made"
            if entries
            else "nothing says on which machine a number was made",
            risk="Another GPU, driver or number of threads gives other last digits, or more.",
            remedy="Record a baseline where the numbers are made: it keeps the machine.",
            command=RECORD if facts.settings is not None else next_command(facts),
        ),
    )


def _machine(environment: Environment) -> str:
    """The GPUs, or the CPU's model where there is none."""
    return environment.part(CPU if environment.part(DEVICE) == CPU else DEVICE)


def _seals(facts: RepositoryFacts) -> tuple[AuditItem, ...]:
    part, code = AuditedPart.SEALS, "trusted-keys"
    if facts.active_keys:
        return (
            passed(part, code, f"{counted(facts.active_keys, 'active key')} in the trust file"),
        )
    problem = facts.keys_problem
    return (
        failed(
            part,
            code,
            problem or "no key is trusted",
            risk="A result can be changed after the run, and nobody would notice.",
            remedy="Generate a key, keep its private half in the CI's secrets, commit its trust "
            "file as .repro-gate/trusted-keys.json.",
            command="repro-gate keys list" if problem else "repro-gate keys generate --out keys",
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
