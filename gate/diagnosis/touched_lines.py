"""Choose which lines of the diff belong beside a difference: named, fitting, or executed ones.

A hunk is proven to matter if it contains the named line or the changed numbers. The same holds if
nothing else of the change can matter. A hunk that merely ran before the difference is a candidate,
and so is a file that the training opened; `HowKnown` says which. Two candidates may be shown
together, three never are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from gate.comparison.differences import EventKind, OptimizerSettingChange
from gate.comparison.work import CLASS
from gate.diagnosis.diagnosis import CauseClass, CodePlace, Diagnosis
from gate.diagnosis.fitting_lines import NUMBER, can_matter, fitting_hunks, is_in, with_numbers
from gate.diagnosis.other_processes import OtherProcesses
from gate.evidence.trace import HowKnown, RankTrace, ShownChange, TraceFinding
from gate.system.git.changes import MAX_HUNKS, Change, ChangedLines

PAIR: Final = 2
OF_OTHERS: Final = {
    OtherProcesses.WORKERS: (
        "The value may also come from a worker of a DataLoader: look at changes to the data set."
    ),
    OtherProcesses.STARTED: (
        "The value may also come from another process that the training starts: look at changes to "
        "what runs there."
    ),
}
# Read by a shell or by make, where no hook of the harness sees it.
STARTS: Final = (".sh", ".bash", ".mk", "Makefile", "makefile", "justfile", "Justfile")
# A training reads none of these as data.
CODE: Final = (".py", ".pyi", ".so", ".cu", ".cpp", ".c", ".h", ".pyx", *STARTS)
SETTINGS_FILES: Final = (".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".env")
# JSON files contain samples and labels as often as settings.
EITHER_KIND: Final = (".json",)
# With these, something that is not shown may be the cause.
NOT_ALONE: Final = frozenset((HowKnown.EITHER, HowKnown.EITHER_OF_ALL, HowKnown.READ_AMONG))
# A process reports no more sources of one kind.
MAX_DATA_FILES: Final = 40
MAX_DATA_NAME: Final = 200
# A value without parentheses ends where the argument ends.
VALUE: Final = r"(?:\([^()]*\)|\[[^\[\]]*\]|[-+.\w]+(?=\s*[,)\n]))"
# A function header whose defaults contain no calls, with its body on later lines. Running it
# defines a function and does nothing else.
HEADER: Final = re.compile(
    r"\s*+(?:async\s++)?+def\s++(?P<name>\w++)\s*+\([^()#]*+\)[^()#]*:\s*+", re.ASCII
)
LISTED: Final = re.compile(r"\blist\(([\w.]+\(\))\)", re.ASCII)


def with_changed_lines(
    finding: TraceFinding,
    hunks: tuple[ChangedLines, ...],
    trace: RankTrace | None,
    folder: str,
    *,
    others: OtherProcesses = OtherProcesses.NONE,
) -> TraceFinding:
    """Return the finding with the diff's hunks in the training's Python files, sorted by relevance.

    `folder` is the training's folder in the repository; trace paths are relative to it. A hunk
    counts as executed if one of its lines ran before the diverging call. `others` are processes
    without a trace, which may have made a number that a call is given. A metric that differs behind
    equal calls may come from a program that the training starts.
    """
    local = [hunk for hunk in (_seen_from(hunk, folder) for hunk in hunks) if hunk is not None]
    at_it = any(_holds(hunk, finding.file, finding.line) for hunk in local)
    no_call = others is OtherProcesses.STARTED and not finding.names_a_call
    if others is not OtherProcesses.NONE and not at_it and (finding.given or no_call):
        if not finding.elsewhere and not no_call:
            remedy = f"{finding.remedy} {OF_OTHERS[others]}".strip()
            finding = finding.model_copy(update={"remedy": remedy})
        finding = finding.model_copy(update={"elsewhere": True})
    if trace is None or not hunks:
        return finding
    # Lines that ran only after the last call, for example in an unused function, made no traced
    # call.
    end = max(0, len(trace.calls) - 1) if finding.call is None else finding.call
    when = {hunk: _ran(hunk, trace, end) for hunk in local}
    before = [hunk for hunk in local if when[hunk]]
    # First the hunk that made the call, then the one that ran last before it.
    made = [hunk for hunk in before if _holds(hunk, finding.file, finding.line)]
    first = [] if finding.only_uses else made
    before.sort(key=lambda hunk: (hunk not in first, -max(when[hunk])))
    later = tuple(hunk for hunk in local if not when[hunk])
    return finding.model_copy(
        update={"changed": tuple(before[:MAX_HUNKS]), "changed_later": later[:MAX_HUNKS]}
    )


def _seen_from(hunk: ChangedLines, folder: str) -> ChangedLines | None:
    prefix = f"{folder}/" if folder and folder != "." else ""
    if not hunk.file.startswith(prefix) or not hunk.file.endswith(".py"):
        return None
    return hunk.model_copy(update={"file": hunk.file.removeprefix(prefix)})


def _ran(hunk: ChangedLines, trace: RankTrace, end: int) -> tuple[int, ...]:
    """Return the positions at which lines of the hunk first ran, up to call `end`.

    () if the hunk only defines functions and none of their lines ran: nobody called them.
    """
    ran = {
        line.line: place
        for place, line in enumerate(trace.lines)
        if line.file == hunk.file and hunk.first <= line.line <= hunk.last and line.call <= end
    }
    only_defines = not hunk.gone and all(_is_header(hunk, line) for line in ran)
    return () if only_defines else tuple(ran.values())


def _is_header(hunk: ChangedLines, line: int) -> bool:
    """Return whether a line of the hunk only starts a function, as far as the hunk is shown."""
    place = line - hunk.first
    return place < len(hunk.after) and HEADER.fullmatch(hunk.after[place]) is not None


def _holds(hunk: ChangedLines, file: str, line: int) -> bool:
    return hunk.file == file and hunk.first <= line <= hunk.last


def shortened(change: Change | None) -> Change | None:
    """Return the change with at most `MAX_HUNKS` hunks, the number that evidence keeps."""
    if change is None or len(change.hunks) <= MAX_HUNKS:
        return change
    return Change(hunks=change.hunks[:MAX_HUNKS], complete=False)


def where_raised(change: Change | None, place: CodePlace | None, folder: str) -> ShownChange | None:
    """Return the hunk that contains the line that raised, or None."""
    return _first(HowKnown.RAISED, _named(change, [place], folder))


def shown_change(
    change: Change | None,
    diagnosis: Diagnosis | None,
    read: Iterable[str],
    folder: str,
    *,
    drift: bool,
    schedules: Iterable[CodePlace | None] = (),
) -> ShownChange | None:
    """Return the part of the change that belongs beside a difference, or None if none is known to.

    `read` are the repository paths of files that the training opened. Such a file may be the cause
    beside a line that ran, or a line that no trace shows not to have run. `drift` is False for two
    runs of one commit: only a named line explains these, never one that merely fits. `schedules`
    are the lines that create schedulers.
    """
    if change is None or diagnosis is None:
        return None
    named = _named(change, _places(diagnosis), folder)
    opened = frozenset(read)
    able = [hunk for hunk in change.hunks if can_matter(hunk.file)]
    data = [hunk for hunk in able if hunk.file in opened]
    unseen = [_in_repository(hunk, folder) for hunk in _may_have_run(diagnosis.trace, change)]
    starts = [hunk for hunk in able if hunk.file.endswith(STARTS)]
    passing = _passing(diagnosis.trace, [*starts, *data], folder)
    # The line of a call may only pass on numbers that a different hunk sets.
    elsewhere = [hunk for hunk in passing if named and hunk not in named]
    # A known line acts by itself, whatever file was read. The call at which two traces diverge does
    # not.
    beside = [] if diagnosis.likely else list(dict.fromkeys((*unseen, *data, *elsewhere)))
    work = _first(HowKnown.FITS, with_numbers(able, diagnosis.work))
    if drift and work is not None and not diagnosis.likely:
        return work
    if not drift or (named and not beside):
        return _with_move(_first(HowKnown.NAMED, named), change)
    ran = named[:1] or [_in_repository(hunk, folder) for hunk in _ran_before(diagnosis, change)]
    settings = () if named else diagnosis.optimizer_settings
    fitting = _first(HowKnown.FITS, fitting_hunks(change, settings))
    if fitting is None and any(setting.scheduled for setting in settings):
        fitting = _first(HowKnown.SCHEDULE, _named(change, schedules, folder))
    if fitting is None and not named:
        fitting = _first(HowKnown.FITS, passing)
    if fitting is None and beside and (ran or (unseen and len(beside) > 1)):
        # What a worker may have run or read explains its value better than a line that ran here.
        one_file = data if unseen and len(_parts(data)) == 1 else []
        of_workers = _either(unseen, change) or _first(HowKnown.READ_AMONG, one_file)
        return _either([*ran, *beside], change) or of_workers
    only = all_that_matters(change)
    # Proof that a file is read is stronger than the absence of other candidates.
    proved = _read(data, change, diagnosis.trace, folder) if only is None else None
    if only is not None and only.hunks[0] in data:
        proved = _first(HowKnown.READ, data)
    near = fitting or proved or only or _first(HowKnown.RAN, ran)
    return _with_move(near or _whole_pair(diagnosis, change), change)


def _whole_pair(diagnosis: Diagnosis, change: Change) -> ShownChange | None:
    """Return the whole change if it has two parts, and no trace could tell them apart.

    What an optimizer is given is no call of an operator, so equal traces do not tell either. Both
    parts have to have run then.
    """
    trace = diagnosis.trace
    if trace is not None and not trace.failed:
        both_ran = not trace.names_a_call and len(trace.changed) == PAIR
        if diagnosis.kind is not EventKind.STRUCTURE or not both_ran:
            return None
    if not change.complete:
        return None
    return _either([hunk for hunk in change.hunks if can_matter(hunk.file)], change)


def _read(
    data: list[ChangedLines], change: Change, trace: TraceFinding | None, folder: str
) -> ShownChange | None:
    """Return the files that the training opened, and what else of the change may be the cause."""
    after = trace.changed_later if trace is not None and not trace.elsewhere else ()
    too_late = [_in_repository(hunk, folder) for hunk in after]
    code = [hunk for hunk in change.hunks if is_code(hunk.file) and hunk not in too_late]
    if not data or (change.complete and not code):
        return _first(HowKnown.READ, data)
    return _either([*code, *data], change) or _first(HowKnown.READ_AMONG, data)


def _either(candidates: Iterable[ChangedLines], change: Change) -> ShownChange | None:
    """Return two parts of the change that may each be the cause; None for more than two."""
    both = _parts(candidates)
    every = _parts(hunk for hunk in change.hunks if can_matter(hunk.file))
    all_ = change.complete and set(both) == set(every)
    how = HowKnown.EITHER_OF_ALL if all_ else HowKnown.EITHER
    return ShownChange(how=how, hunks=both) if len(both) == PAIR else None


def _parts(hunks: Iterable[ChangedLines]) -> tuple[ChangedLines, ...]:
    """Return each Python hunk, then the first hunk of each other file as its representative."""
    known = list(dict.fromkeys(hunks))
    lines = [hunk for hunk in known if hunk.file.endswith(".py")]
    files = {hunk.file: hunk for hunk in reversed(known) if not hunk.file.endswith(".py")}
    return (*lines, *files.values())


def _may_have_run(trace: TraceFinding | None, change: Change) -> tuple[ChangedLines, ...]:
    """Return changed lines that no trace saw run, if the value came from an untraced process."""
    later = trace.changed_later if trace is not None and trace.elsewhere else ()
    return tuple(hunk for hunk in later if not _is_uncalled(hunk, change))


def _is_uncalled(hunk: ChangedLines, change: Change) -> bool:
    """Return whether the hunk only adds functions that no other part of the change mentions."""
    own = [line for line in hunk.after if line and not line.startswith((" ", "\t"))]
    headers = [HEADER.fullmatch(line) for line in own]
    if hunk.gone or len(hunk.after) != hunk.new or not own or not all(headers):
        return False
    others = [
        other for other in change.hunks if can_matter(other.file) and other.after != hunk.after
    ]
    # A line that is not shown may call the function.
    shown = all(
        (other.first or other.removed) and other.new == len(other.after) for other in others
    )
    if not shown or not change.complete:
        return False
    text = "\n".join(line for other in others for line in other.after)
    return not any(re.search(rf"\b{header['name']}\b", text) for header in headers if header)


def _ran_before(diagnosis: Diagnosis, change: Change) -> tuple[ChangedLines, ...]:
    """Return the nearest hunk that ran, leaving out hunks that only set unrelated settings.

    A pair is returned whole, since neither is known to be the cause. More than a pair gives ()
    where hunks were left out, or where an optimizer setting is known: lines far from the call may
    set it.
    """
    trace = diagnosis.trace
    changed = trace.changed if trace is not None else ()
    left = tuple(hunk for hunk in changed if not _only_sets(hunk, diagnosis.settings_beside))
    if left != changed or diagnosis.optimizer_settings:
        return left if len(left) <= PAIR else ()
    pair = trace is not None and trace.names_a_call and len(changed) == PAIR
    return changed if pair else _nearest(trace, change)


def _only_sets(hunk: ChangedLines, settings: tuple[OptimizerSettingChange, ...]) -> bool:
    """Return whether both sides of a hunk differ only in these settings: numbers or classes."""
    # A line that is not shown may change anything.
    if not settings or (hunk.gone, hunk.new) != (len(hunk.before), len(hunk.after)):
        return False
    before, after = (
        _without_settings(lines, settings, {getattr(setting, side) for setting in settings})
        for lines, side in ((hunk.before, "before"), (hunk.after, "after"))
    )
    return before == after


def _without_settings(
    lines: tuple[str, ...], settings: tuple[OptimizerSettingChange, ...], numbers: set[str]
) -> str:
    """Return the text without arguments of those names, those numbers and those classes."""
    text = "\n".join(lines)
    kinds = {
        kind
        for setting in settings
        if setting.name == CLASS
        for kind in (setting.before, setting.after)
    }
    if kinds:
        # Some optimizer classes accept only a list. All others convert their argument themselves,
        # so `list(...)` around it makes no difference.
        text = LISTED.sub(r"\1", text)
    for kind in kinds:
        text = re.sub(rf"\b{re.escape(kind)}\b", "", text)
    for name in {setting.name.partition("/")[0] for setting in settings}:
        text = re.sub(rf"\b{re.escape(name)}\s*=\s*{VALUE}\s*,?", "", text)
    text = NUMBER.sub(lambda match: "" if _same(match.group(), numbers) else match.group(), text)
    return re.sub(r"[\s,]+(?=\))|\s+", "", text)


def _same(word: str, numbers: set[str]) -> bool:
    return any(is_in(number, (float(word.replace("_", "")),)) for number in numbers)


def _nearest(trace: TraceFinding | None, change: Change) -> tuple[ChangedLines, ...]:
    """Return the hunk that ran last before a named call, else the only hunk that ran at all.

    Where no call is named, the last hunk may be any line at the script's end. A number that a call
    is given was often set in the call's own file, so the nearest hunk there is a candidate too.
    """
    if trace is None or not (trace.names_a_call or len(trace.changed) == 1):
        return ()
    # If a line of an untraced process may have run too, no hunk is the nearest.
    if _may_have_run(trace, change):
        return trace.changed
    file = trace.file or trace.forward_place.rpartition(":")[0]
    own = [hunk for hunk in trace.changed if trace.given and hunk.file == file]
    return tuple(dict.fromkeys((*trace.changed[:1], *own[:1])))


def named_by_change(change: Change | None, diagnosis: Diagnosis | None, folder: str) -> bool:
    """Return whether the diff alone shows the lines of a drift, without a trace of what ran.

    If settings also explain the drift, the gate then skips the traced runs.
    """
    shown = shown_change(change, diagnosis, (), folder, drift=True)
    return shown is not None and shown.how in {HowKnown.FITS, HowKnown.ONLY}


def all_that_matters(change: Change | None) -> ShownChange | None:
    """Return the only part of the change that a training can read, or None if there is more."""
    if change is None or not change.complete:
        return None
    relevant = [hunk for hunk in change.hunks if can_matter(hunk.file)]
    return _first(HowKnown.ONLY, relevant) if relevant and _single(relevant) else None


def ran_before_nan(
    change: Change | None, trace: TraceFinding | None, folder: str
) -> ShownChange | None:
    """Return the part of a change that belongs beside the first number that is not finite."""
    if change is None:
        return None
    nearest = [_in_repository(hunk, folder) for hunk in _nearest(trace, change)]
    return all_that_matters(change) or _first(HowKnown.RAN_BEFORE_NAN, nearest)


def _single(hunks: list[ChangedLines]) -> bool:
    """Return whether the hunks are one change, a move of lines, or one data or settings file."""
    files = {hunk.file for hunk in hunks}
    if len(files) != 1:
        return False
    moved = len(hunks) == PAIR and _are_a_move(hunks[0], hunks[1])
    return len(hunks) == 1 or moved or not hunks[0].file.endswith(".py")


def _are_a_move(left: ChangedLines, right: ChangedLines) -> bool:
    """Return whether one hunk removes exactly the lines that the other adds.

    Indentation is ignored.
    """
    out, into = (left, right) if left.removed else (right, left)
    # A line that is not shown may be different.
    whole = (out.gone, into.new) == (len(out.before), len(into.after))
    pure = out.removed and not into.removed and not into.gone
    lines = [[line.strip() for line in side] for side in (out.before, into.after)]
    return left.file == right.file and whole and pure and lines[0] == lines[1]


def _with_move(shown: ShownChange | None, change: Change) -> ShownChange | None:
    """Return the hunk with the place its lines came from: alone, moved lines would look new."""
    if shown is None or len(shown.hunks) != 1:
        return shown
    (hunk,) = shown.hunks
    others = [other for other in change.hunks if _are_a_move(hunk, other)]
    both = sorted((hunk, *others[:1]), key=lambda lines: lines.first)
    return shown.model_copy(update={"hunks": tuple(both)}) if len(others) == 1 else shown


def is_code(file: str) -> bool:
    """Return whether a training may run a repository file."""
    return can_matter(file) and file.endswith(CODE)


def data_files(change: Change | None) -> tuple[str, ...]:
    """Return the changed data and settings files for a run to watch, at most `MAX_DATA_FILES`."""
    hunks = change.hunks if change is not None else ()
    # The names are passed as one list of paths, so a name with a separator or control character
    # cannot be watched.
    named = (
        hunk.file
        for hunk in hunks
        if can_matter(hunk.file)
        and not hunk.file.endswith(CODE)
        and hunk.file.isprintable()
        and os.pathsep not in hunk.file
        and len(hunk.file) <= MAX_DATA_NAME
    )
    return tuple(dict.fromkeys(named))[:MAX_DATA_FILES]


def by_its_files(
    recorded: CauseClass | None,
    shown: ShownChange | None,
    change: Change | None,
    *,
    parsed: bool = False,
) -> CauseClass | None:
    """Return the class of cause if the training read a changed file and changed code is no cause.

    `parsed`: the training's parsed arguments differ from the baseline's. With the same command and
    code, they must come from the file, whatever its name. The class stays open (None) where data
    and settings both changed, and where the kind of file does not decide. It also does where code
    or a file may be the cause.
    """
    open_ = shown.hunks if shown is not None and shown.how in NOT_ALONE else ()
    if recorded is CauseClass.CODE and not all(is_code(hunk.file) for hunk in open_):
        return None
    hunks = change.hunks if change is not None and change.complete else ()
    code = any(is_code(hunk.file) for hunk in hunks)
    if (
        recorded is CauseClass.CODE
        and shown is not None
        and shown.how is HowKnown.ONLY
        and not code
    ):
        # No code changed, but the training was not seen to open the file.
        return None
    # `READ` is given only where no code may be the cause: any changed code ran too late.
    read = shown is not None and (
        shown.how is HowKnown.READ or (shown.how is HowKnown.FITS and not code)
    )
    if shown is None or not read or recorded is not CauseClass.CODE:
        return recorded
    files = {hunk.file for hunk in shown.hunks}
    settings = {file for file in files if file.endswith(SETTINGS_FILES)}
    # One file may hold the parsed arguments, and a different one may hold what differs first.
    if len(files) > 1 and settings != files and (settings or parsed):
        return None
    if settings or parsed:
        return CauseClass.RUN_SETTINGS
    return None if any(file.endswith(EITHER_KIND) for file in files) else CauseClass.DATA


def unchanged(change: Change | None, places: Sequence[CodePlace], folder: str) -> bool:
    """Return whether a known line and its callers are certainly outside the change."""
    known = change is not None and change.complete and bool(places)
    return known and not _named(change, places, folder)


def _first(how: HowKnown, hunks: list[ChangedLines]) -> ShownChange | None:
    return ShownChange(how=how, hunks=tuple(hunks[:PAIR])) if hunks else None


def _places(diagnosis: Diagnosis) -> Iterator[CodePlace | None]:
    """Yield the first named line and its callers; else the call at which two traces diverge.

    A call that only shows work done elsewhere proves nothing about its own line: it uses an earlier
    value or a setting of the optimizer, or its optimizer's turn comes at another time.
    """
    trace = diagnosis.trace
    elsewhere = bool(diagnosis.optimizer_settings) or diagnosis.kind is EventKind.TURNS
    elsewhere = elsewhere or (trace is not None and trace.only_uses)
    if diagnosis.likely:
        yield from diagnosis.likely[0].code_places
    elif trace is not None and trace.names_a_call and not elsewhere:
        yield CodePlace.known(trace.file, trace.line)


def _named(
    change: Change | None, places: Iterable[CodePlace | None], folder: str
) -> list[ChangedLines]:
    hunks = change.hunks if change is not None else ()
    known = [(_path(place.file, folder), place.line) for place in places if place is not None]
    hunks_found = [hunk for file, line in known for hunk in hunks if hunk.holds(file, line)]
    return list(dict.fromkeys(hunks_found))


def _path(file: str, folder: str) -> str:
    return str(PurePosixPath(folder, file))


def _in_repository(hunk: ChangedLines, folder: str) -> ChangedLines:
    return hunk.model_copy(update={"file": _path(hunk.file, folder)})


def _passing(
    trace: TraceFinding | None, data: list[ChangedLines], folder: str
) -> list[ChangedLines]:
    """Return the one hunk that may have passed its numbers to the diverging call, else [].

    `data` are hunks of files that the training opened, or that started it.
    """
    if trace is None or not trace.numbers:
        return []
    able = [*(_in_repository(hunk, folder) for hunk in trace.changed), *data]
    return with_numbers(able, trace.numbers)
