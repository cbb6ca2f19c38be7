"""Checks what the commit lacks, since a gate call trains only committed files."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from gate.errors import RepositoryError
from gate.isolation.processes import ACTIVATE
from gate.pipelines.doctor.health import CheckResult, Examined
from gate.settings.gate_settings import GateSettings
from gate.text.phrases import count

SHOWN = 4
SHOWN_IN_FULL = 20
CLEAN_TREE = "The gate trains only committed files: ignored and untracked ones are missing."
COMMIT_IT = f"Commit it, or correct train.command. {CLEAN_TREE}"
COMMIT = "Commit them"
COMMIT_OR_IGNORE = f"{COMMIT}, or add new files that do not belong to the project to .gitignore"
OWN_FOLDER = ".repro-gate"
SCRIPTS = (".py", ".sh")
MAX_WORDS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyPaths:
    """The paths of the policy files from the root; an empty path stands for none."""

    baseline: str
    settings: str
    trust: str

    def holds(self, path: str) -> bool:
        """Decide whether a file is a policy file or an entry of the baseline."""
        return bool(self.parts_of((path,)))

    def parts_of(self, paths: Collection[str]) -> tuple[str, ...]:
        """Return the policy parts that any of the paths belongs to, the baseline first."""
        own = tuple(filter(None, (self.baseline, self.settings, self.trust)))
        return tuple(
            part
            for part in own
            if any(path == part or path.startswith(f"{part}/") for path in paths)
        )

    def names_of(self, paths: Collection[str]) -> tuple[str, ...]:
        """Return these parts as a sentence names them."""
        called = {
            self.baseline: "the baseline",
            self.settings: "the settings file",
            self.trust: "the trust file",
        }
        return tuple(f"{called[part]} ({part})" for part in self.parts_of(paths))


def policy_of(settings: GateSettings, project: str, config_name: str) -> PolicyPaths:
    """Return the paths of the policy files under these settings, which are in folder `project`."""

    def path(relative: str) -> str:
        return posixpath.normpath(f"{project}/{relative}")

    return PolicyPaths(
        baseline=path(settings.baseline.path),
        settings=path(config_name),
        trust=path(settings.signing.trusted_keys),
    )


NO_POLICY = PolicyPaths(baseline="", settings="", trust="")


def add_and_commit(paths: Collection[str], policy: PolicyPaths, *, force: bool = False) -> str:
    """Return the command that commits the policy parts to which these paths belong."""
    parts = policy.parts_of(paths)
    places = [PurePosixPath(part) for part in parts]
    # the folder belongs to the gate, so naming it commits all that is in it
    short = [place.parent if place.parent.name == OWN_FOLDER else place for place in places]
    words = " ".join(dict.fromkeys(shlex.quote(str(place)) for place in short))
    message = "Baseline" if policy.baseline in parts else "repro-gate"
    return f"`git add {'-f ' if force else ''}{words} && git commit -m {message}`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncommitted:
    """Uncommitted changes: a summary, how to resolve them, and one line for each.

    `judges` is true if policy files are among them, so the changes must not be stashed.
    """

    summary: str
    fix: str
    entries: tuple[str, ...]
    judges: bool = False


def uncommitted(
    changed: tuple[str, ...], untracked: tuple[str, ...], policy: PolicyPaths = NO_POLICY
) -> Uncommitted:
    """Summarise uncommitted changes.

    `changed` lists files. `untracked` lists new files, and a new folder as one name with a slash. A
    folder of thousands of files, usually an environment, is one entry and comes first.
    """
    folders = tuple(name for name in untracked if name.endswith("/"))
    # counted, because "12,000 files" shows that it is an environment and "1 entry" does not
    inside = {name: sum(path.startswith(name) for path in changed) for name in folders}
    rest = tuple(path for path in changed if not path.startswith(folders))
    entries = (*(f"{name} ({count(inside[name], 'untracked file')})" for name in folders), *rest)
    own = tuple(path for path in changed if policy.holds(path))
    # git goes on to track a file whatever .gitignore says of it
    rest_fix = COMMIT_OR_IGNORE if untracked else COMMIT
    if len(entries) == 1 and folders:
        (name,) = folders
        return Uncommitted(
            summary=f"uncommitted changes: `{name}` is untracked ({count(inside[name], 'file')})",
            fix=_fix_of(changed, own, policy, rest_fix)
            or f"Add `{name}` to .gitignore and commit that",
            entries=(),
            judges=bool(own),
        )
    things = "1 uncommitted change" if len(entries) == 1 else f"{len(entries)} uncommitted changes"
    return Uncommitted(
        summary=f"the work tree has {things}",
        fix=_fix_of(changed, own, policy, rest_fix) or rest_fix,
        entries=entries,
        judges=bool(own),
    )


def _fix_of(
    changed: tuple[str, ...], own: tuple[str, ...], policy: PolicyPaths, rest_fix: str
) -> str:
    """Return how to commit the changed policy files; empty if none changed."""
    if not own:
        return ""
    command = add_and_commit(own, policy)
    rest = f"{rest_fix[0].lower()}{rest_fix[1:]}"
    return command if len(own) == len(changed) else f"{command}. For the rest: {rest}"


def uncommitted_fault(seen: Uncommitted, *, may_allow: bool) -> RepositoryError:
    """Return the error of a call with uncommitted changes; `may_allow`: an option allows them."""
    # stashing would put the new baseline aside, which the user wants judged by
    aside = "" if seen.judges else " Or set them aside: `git stash -u`."
    allow = " Or add --allow-dirty: the verdict lists them, and nothing is sealed."
    return RepositoryError(
        seen.summary,
        hint=f"{seen.fix}.{aside}{allow if may_allow else ''}",
        details=seen.entries[:SHOWN_IN_FULL],
    )


def examined_work_tree(
    changed: tuple[str, ...], untracked: tuple[str, ...], policy: PolicyPaths = NO_POLICY
) -> Examined:
    """Check whether `gate` would refuse to start because of uncommitted changes."""
    if not changed:
        return Examined(name="work tree", health=CheckResult.OK, found="no uncommitted changes")
    seen = uncommitted(changed, untracked, policy)
    more = f", and {len(seen.entries) - SHOWN} more" if len(seen.entries) > SHOWN else ""
    shown = f": {', '.join(seen.entries[:SHOWN])}{more}" if seen.entries else ""
    return Examined(
        name="work tree",
        health=CheckResult.FAIL,
        found=f"{seen.summary}{shown}",
        fix=f"{seen.fix}.",
    )


def examined_policy(sentence: str, fix: str) -> Examined:
    """Return the row for an uncommitted policy file, with which `gate` refuses to start."""
    return Examined(name="policy", health=CheckResult.FAIL, found=sentence, fix=fix)


def named_paths(command: tuple[str, ...], workdir: str) -> Mapping[str, str]:
    """Return the words of a command that can be paths in the repository, with those paths.

    `--data=a/b` names `a/b`. Absolute paths and paths out of the repository are left out.
    """
    paths: dict[str, str] = {}
    for place, word in enumerate(command[:MAX_WORDS]):
        # the value of an option may be a path, the option itself is none
        text = word.rpartition("=")[2] if word.startswith("-") else word
        path = PurePosixPath(text)
        is_program = place == 0 and "/" not in text
        if is_program or not text or text.startswith("-") or path.is_absolute():
            continue
        if ".." not in path.parts and path.parts:
            paths[word] = (PurePosixPath(workdir) / path).as_posix()
    return paths


def script_of(command: tuple[str, ...]) -> str:
    """Return the first word with the suffix of a script; empty for `-m module` and the like."""
    return next((word for word in command if word.endswith(SCRIPTS) and word[0] != "-"), "")


def examined_ignored(path: str, place: str, ways: str) -> Examined:
    """Return the row for a file that a script reads and that a checkout of the commit lacks."""
    answer = f"{place} reads {path}, which git ignores, so the checkout that is trained lacks it"
    return Examined(name="data", health=CheckResult.WARN, found=answer, fix=ways)


def no_program(program: str) -> Examined:
    """Return the row for a program that cannot be started where the training runs."""
    return Examined(
        name="command",
        health=CheckResult.FAIL,
        found=f"{program}: not found where the training runs",
        fix="Install it there, or correct train.command.",
    )


def examined_command(
    command: tuple[str, ...],
    missing: Collection[str],
    there: Collection[str],
    ignored: Sequence[str],
) -> Examined:
    """Check whether a clean checkout of the commit has every file that the command names.

    `missing` are words that the commit lacks. `there` are the missing words that the work tree has.
    `ignored` are the paths of these that git ignores.
    """
    script = script_of(command)
    health, fix = CheckResult.FAIL, COMMIT_IT
    if command[0] in missing and not command[0].endswith(SCRIPTS):
        answer, fix = f"{command[0]} is not in the commit", ACTIVATE
    elif ignored:
        answer = f"ignored by git, so not in the commit: {', '.join(ignored)}"
        fix = f"Commit a small sample of it, or take it from the image. {CLEAN_TREE}"
    elif script in missing:
        answer = f"{script} {'is not committed' if script in there else 'does not exist'}"
    else:
        health, answer, fix = CheckResult.OK, "every file that it names is in the commit", ""
    return Examined(name="command", health=health, found=answer, fix=fix)
