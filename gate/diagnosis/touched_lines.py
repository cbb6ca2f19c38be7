"""Which lines of the diff belong beside a difference: those that are named, that fit, that ran."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from gate.comparison.differences import OptimizerSettingChange
from gate.comparison.work import CLASS
from gate.diagnosis.diagnosis import CauseClass, CodePlace, Diagnosis
from gate.evidence.trace import ChangedNumber, HowKnown, RankTrace, ShownChange, TraceFinding
from gate.system.git.changes import MAX_HUNKS, Change, ChangedLines

PAIR: Final = 2
OF_WORKERS: Final = (
    "The value may also come from a worker of a DataLoader: look at changes to the data set."
)
# of these a training reads nothing
CODE: Final = (".py", ".pyi", ".so", ".cu", ".cpp", ".c", ".h", ".pyx", ".sh")
SETTINGS_FILES: Final = (".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".env")
# as often samples and labels as settings
EITHER_KIND: Final = (".json",)
# beside what is shown, something else may be the cause
NOT_ALONE: Final = frozenset((HowKnown.EITHER, HowKnown.EITHER_OF_ALL, HowKnown.READ_AMONG))
# a process tells no more of a kind
MAX_DATA_FILES: Final = 40
MAX_DATA_NAME: Final = 200
DOCUMENTS: Final = (".md", ".rst")
BESIDE: Final = (".github/", ".repro-gate/", "docs/")
NO_CODE: Final = frozenset(("LICENSE", "CHANGELOG", ".gitignore", "CODEOWNERS"))
NUMBER: Final = re.compile(
    r"(?<![\w.])-?(?:\d[\d_]*+\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?+(?![\w.])", re.ASCII
)
# without parentheses a number ends where the argument does
VALUE: Final = r"(?:\([^()]*\)|\[[^\[\]]*\]|[-+.\w]+(?=\s*[,)\n]))"
# its parameters have no values that are computed, and its body is below it
HEADER: Final = re.compile(
    r"\s*+(?:async\s++)?+def\s++(?P<name>\w++)\s*+\([^()#]*+\)[^()#]*:\s*+", re.ASCII
)
LISTED: Final = re.compile(r"\blist\(([\w.]+\(\))\)", re.ASCII)
# a schedule multiplies: the last digits of a product are not those of its factors
NEAR: Final = 1e-9


def with_changed_lines(
    finding: TraceFinding,
    hunks: tuple[ChangedLines, ...],
    trace: RankTrace | None,
    folder: str,
    *,
    workers: bool = False,
) -> TraceFinding:
    """The finding with the diff's hunks, as far as Python files of the training's are meant.

    `folder` is the training's in the repository; files of the trace count from there. A hunk ran
    when one of its lines did, before the call that parts the runs. `workers`: a DataLoader had
    some, which may have made a number that a call is given.
    """
    local = [hunk for hunk in (_seen_from(hunk, folder) for hunk in hunks) if hunk is not None]
    at_it = any(_holds(hunk, finding.file, finding.line) for hunk in local)
    if workers and not at_it and not finding.elsewhere and finding.given:
        remedy = f"{finding.remedy} {OF_WORKERS}".strip()
        finding = finding.model_copy(update={"elsewhere": True, "remedy": remedy})
    if trace is None or not hunks:
        return finding
    # what only ran behind the last call, such as a function that nobody calls, made none of them
    end = max(0, len(trace.calls) - 1) if finding.call is None else finding.call
    when = {hunk: _ran(hunk, trace, end) for hunk in local}
    before = [hunk for hunk in local if when[hunk]]
    # the line that made the call, then what ran last before it
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
    """As which of all lines those of the hunk ran first, up to the call `end`.

    None where it only defines functions of which no line ran: nobody called them.
    """
    ran = {
        line.line: place
        for place, line in enumerate(trace.lines)
        if line.file == hunk.file and hunk.first <= line.line <= hunk.last and line.call <= end
    }
    only_defines = not hunk.gone and all(_is_header(hunk, line) for line in ran)
    return () if only_defines else tuple(ran.values())


def _is_header(hunk: ChangedLines, line: int) -> bool:
    """Whether a line of the hunk does nothing but begin a function, of what is shown of it."""
    place = line - hunk.first
    return place < len(hunk.after) and HEADER.fullmatch(hunk.after[place]) is not None


def _holds(hunk: ChangedLines, file: str, line: int) -> bool:
    return hunk.file == file and hunk.first <= line <= hunk.last


def shortened(change: Change | None) -> Change | None:
    """The first `MAX_HUNKS` hunks of it, which are what evidence keeps."""
    if change is None or len(change.hunks) <= MAX_HUNKS:
        return change
    return Change(hunks=change.hunks[:MAX_HUNKS], complete=False)


def where_raised(change: Change | None, place: CodePlace | None, folder: str) -> ShownChange | None:
    """The part of the change that holds the line that raised."""
    return _first(HowKnown.RAISED, _named(change, [place], folder))


def shown_change(
    change: Change | None,
    diagnosis: Diagnosis | None,
    read: Iterable[str],
    folder: str,
    *,
    drift: bool,
) -> ShownChange | None:
    """What of the change belongs beside a difference, where something is known to.

    Two runs of one commit that differ are explained by a line that is named, and by nothing that
    only fits. `read` are the paths in the repository of files that the training opened: beside a
    line that ran, or of which no trace says that it did not, such a file may be the cause as well.
    """
    if change is None or diagnosis is None:
        return None
    named = _named(change, _places(diagnosis), folder)
    opened = frozenset(read)
    data = [hunk for hunk in change.hunks if can_matter(hunk.file) and hunk.file in opened]
    unseen = [_in_repository(hunk, folder) for hunk in _may_have_run(diagnosis.trace, change)]
    passing = _passing(diagnosis.trace, data, folder)
    # the line of a call may only pass on the numbers that another part holds
    elsewhere = [hunk for hunk in passing if named and hunk not in named]
    # what a line that is known does hangs on no file; the call at which two traces part may
    beside = [] if diagnosis.likely else list(dict.fromkeys((*unseen, *data, *elsewhere)))
    if not drift or (named and not beside):
        return _with_move(_first(HowKnown.NAMED, named), change)
    ran = named[:1] or [_in_repository(hunk, folder) for hunk in _ran_before(diagnosis, change)]
    settings = () if named else diagnosis.optimizer_settings
    fitting = _first(HowKnown.FITS, _fitting(change, settings))
    if fitting is None and not named:
        fitting = _first(HowKnown.FITS, passing)
    if fitting is None and beside and (ran or (unseen and len(beside) > 1)):
        return _either([*ran, *beside], change)
    only = all_that_matters(change)
    # proof that it is read says more than that there is nothing else
    proved = _read(data, change, diagnosis.trace, folder) if only is None else None
    if only is not None and only.hunks[0] in data:
        proved = _first(HowKnown.READ, data)
    near = fitting or proved or only or _first(HowKnown.RAN, ran)
    return _with_move(near or _untraced_pair(diagnosis.trace, change), change)


def _untraced_pair(trace: TraceFinding | None, change: Change) -> ShownChange | None:
    """All of a change, where it has two parts and no trace could tell which of them ran."""
    if not change.complete or (trace is not None and not trace.failed):
        return None
    return _either([hunk for hunk in change.hunks if can_matter(hunk.file)], change)


def _read(
    data: list[ChangedLines], change: Change, trace: TraceFinding | None, folder: str
) -> ShownChange | None:
    """The files that the training opened, and what else of the change may be the cause."""
    after = trace.changed_later if trace is not None and not trace.elsewhere else ()
    too_late = [_in_repository(hunk, folder) for hunk in after]
    code = [hunk for hunk in change.hunks if is_code(hunk.file) and hunk not in too_late]
    if not data or (change.complete and not code):
        return _first(HowKnown.READ, data)
    return _either([*code, *data], change) or _first(HowKnown.READ_AMONG, data)


def _either(candidates: Iterable[ChangedLines], change: Change) -> ShownChange | None:
    """Two parts of the change that may each be it; of more, none is shown."""
    both = _parts(candidates)
    every = _parts(hunk for hunk in change.hunks if can_matter(hunk.file))
    all_ = change.complete and set(both) == set(every)
    how = HowKnown.EITHER_OF_ALL if all_ else HowKnown.EITHER
    return ShownChange(how=how, hunks=both) if len(both) == PAIR else None


def _parts(hunks: Iterable[ChangedLines]) -> tuple[ChangedLines, ...]:
    """Each hunk of Python code, then the first hunk of each other file, which stands for all."""
    known = list(dict.fromkeys(hunks))
    lines = [hunk for hunk in known if hunk.file.endswith(".py")]
    files = {hunk.file: hunk for hunk in reversed(known) if not hunk.file.endswith(".py")}
    return (*lines, *files.values())


def _may_have_run(trace: TraceFinding | None, change: Change) -> tuple[ChangedLines, ...]:
    """Changed lines that nobody saw run, where the value came from a process without a trace."""
    later = trace.changed_later if trace is not None and trace.elsewhere else ()
    return tuple(hunk for hunk in later if not _is_uncalled(hunk, change))


def _is_uncalled(hunk: ChangedLines, change: Change) -> bool:
    """Whether it only puts in functions of a module that no other part of the change names."""
    own = [line for line in hunk.after if line and not line.startswith((" ", "\t"))]
    headers = [HEADER.fullmatch(line) for line in own]
    if hunk.gone or len(hunk.after) != hunk.new or not own or not all(headers):
        return False
    others = [
        other for other in change.hunks if can_matter(other.file) and other.after != hunk.after
    ]
    # a line that is not shown may call it
    shown = all(
        (other.first or other.removed) and other.new == len(other.after) for other in others
    )
    if not shown or not change.complete:
        return False
    text = "\n".join(line for other in others for line in other.after)
    return not any(re.search(rf"\b{header['name']}\b", text) for header in headers if header)


def _ran_before(diagnosis: Diagnosis, change: Change) -> tuple[ChangedLines, ...]:
    """The nearest hunk that ran, without those that only set what is no cause of the difference.

    Of a pair both: neither is known to be it. Where some are left out, and where a setting of the
    optimizer is known, which lines far from the call may have set, of more than a pair none.
    """
    trace = diagnosis.trace
    changed = trace.changed if trace is not None else ()
    left = tuple(hunk for hunk in changed if not _only_sets(hunk, diagnosis.settings_beside))
    if left != changed or diagnosis.optimizer_settings:
        return left if len(left) <= PAIR else ()
    pair = trace is not None and trace.names_a_call and len(changed) == PAIR
    return changed if pair else _nearest(trace, change)


def _only_sets(hunk: ChangedLines, settings: tuple[OptimizerSettingChange, ...]) -> bool:
    """Whether the two sides of a hunk differ in these settings alone: numbers, or classes."""
    # a line that is not shown may change anything
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
    """The text without arguments of that name, without those numbers and those classes."""
    text = "\n".join(lines)
    kinds = {
        kind
        for setting in settings
        if setting.name == CLASS
        for kind in (setting.before, setting.after)
    }
    if kinds:
        # some classes take a list alone, to which every other makes it
        text = LISTED.sub(r"\1", text)
    for kind in kinds:
        text = re.sub(rf"\b{re.escape(kind)}\b", "", text)
    for name in {setting.name.partition("/")[0] for setting in settings}:
        text = re.sub(rf"\b{re.escape(name)}\s*=\s*{VALUE}\s*,?", "", text)
    text = NUMBER.sub(lambda match: "" if _same(match.group(), numbers) else match.group(), text)
    return re.sub(r"[\s,]+(?=\))|\s+", "", text)


def _same(word: str, numbers: set[str]) -> bool:
    return any(_is_in(number, frozenset((float(word.replace("_", "")),))) for number in numbers)


def _nearest(trace: TraceFinding | None, change: Change) -> tuple[ChangedLines, ...]:
    """The hunk that ran last before a named call; without one, the only one that ran at all.

    Where no call is named, what ran last may be any line at the script's end.
    """
    if trace is None or not (trace.names_a_call or len(trace.changed) == 1):
        return ()
    # beside a line of another process none is the nearest
    return trace.changed if _may_have_run(trace, change) else trace.changed[:1]


def named_by_change(change: Change | None, diagnosis: Diagnosis | None, folder: str) -> bool:
    """Whether the diff alone shows the lines of a drift, without a trace of what ran."""
    shown = shown_change(change, diagnosis, (), folder, drift=True)
    return shown is not None and shown.how in {HowKnown.FITS, HowKnown.ONLY}


def all_that_matters(change: Change | None) -> ShownChange | None:
    """The only part of a change that a training can read, where there is no more than that."""
    if change is None or not change.complete:
        return None
    relevant = [hunk for hunk in change.hunks if can_matter(hunk.file)]
    return _first(HowKnown.ONLY, relevant) if relevant and _single(relevant) else None


def ran_before_nan(
    change: Change | None, trace: TraceFinding | None, folder: str
) -> ShownChange | None:
    """What of a change belongs beside its first number that is not finite."""
    if change is None:
        return None
    nearest = [_in_repository(hunk, folder) for hunk in _nearest(trace, change)]
    return all_that_matters(change) or _first(HowKnown.RAN_BEFORE_NAN, nearest)


def _single(hunks: list[ChangedLines]) -> bool:
    """Whether it is one change, lines that moved, or one file of data or settings."""
    files = {hunk.file for hunk in hunks}
    if len(files) != 1:
        return False
    moved = len(hunks) == PAIR and _are_a_move(hunks[0], hunks[1])
    return len(hunks) == 1 or moved or not hunks[0].file.endswith(".py")


def _are_a_move(left: ChangedLines, right: ChangedLines) -> bool:
    """Whether the one takes out the very lines that the other puts in, at any indentation."""
    out, into = (left, right) if left.removed else (right, left)
    # a line that is not shown may be another one
    whole = (out.gone, into.new) == (len(out.before), len(into.after))
    pure = out.removed and not into.removed and not into.gone
    lines = [[line.strip() for line in side] for side in (out.before, into.after)]
    return left.file == right.file and whole and pure and lines[0] == lines[1]


def _with_move(shown: ShownChange | None, change: Change) -> ShownChange | None:
    """With where the lines were before: put in alone they would look like new ones."""
    if shown is None or len(shown.hunks) != 1:
        return shown
    (hunk,) = shown.hunks
    others = [other for other in change.hunks if _are_a_move(hunk, other)]
    both = sorted((hunk, *others[:1]), key=lambda lines: lines.first)
    return shown.model_copy(update={"hunks": tuple(both)}) if len(others) == 1 else shown


def can_matter(file: str) -> bool:
    """Whether a training may read a file of the repository, as far as its name tells."""
    path = PurePosixPath(file)
    return not (path.suffix in DOCUMENTS or path.name in NO_CODE or file.startswith(BESIDE))


def is_code(file: str) -> bool:
    """Whether a training may run a file of the repository."""
    return can_matter(file) and file.endswith(CODE)


def data_files(change: Change | None) -> tuple[str, ...]:
    """The files of data and settings in a change, at most `MAX_DATA_FILES`, for a run to watch."""
    hunks = change.hunks if change is not None else ()
    # names that cannot be in a list of paths are watched by nobody
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
    """The class where a file of a change is known to be read, and no code of it may be the cause.

    `parsed`: arguments that the training parsed are not the baseline's. With one command and one
    code they come from the file, whatever it is called. Of data and settings neither is named, nor
    for a kind of file that may be each; and where code and a file may each be it, none is.
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
        # nobody saw the file opened, but no code changed
        return None
    # a file is called read where no code may be the cause: what there is of it ran too late
    read = shown is not None and (
        shown.how is HowKnown.READ or (shown.how is HowKnown.FITS and not code)
    )
    if shown is None or not read or recorded is not CauseClass.CODE:
        return recorded
    files = {hunk.file for hunk in shown.hunks}
    settings = {file for file in files if file.endswith(SETTINGS_FILES)}
    # what was parsed may be of the one, and what differs first of the other
    if len(files) > 1 and settings != files and (settings or parsed):
        return None
    if settings or parsed:
        return CauseClass.RUN_SETTINGS
    return None if any(file.endswith(EITHER_KIND) for file in files) else CauseClass.DATA


def unchanged(change: Change | None, places: Sequence[CodePlace], folder: str) -> bool:
    """Whether a known line, and what called it, are certainly none of the change's."""
    known = change is not None and change.complete and bool(places)
    return known and not _named(change, places, folder)


def _first(how: HowKnown, hunks: list[ChangedLines]) -> ShownChange | None:
    return ShownChange(how=how, hunks=tuple(hunks[:PAIR])) if hunks else None


def _places(diagnosis: Diagnosis) -> Iterator[CodePlace | None]:
    """The line that is named first and what called it; else the call at which two traces part.

    A call that only shows what was done elsewhere says nothing of its own line: it uses what was
    there before, or a setting of the optimizer.
    """
    trace = diagnosis.trace
    elsewhere = bool(diagnosis.optimizer_settings) or (trace is not None and trace.only_uses)
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


def _fitting(change: Change, settings: tuple[OptimizerSettingChange, ...]) -> list[ChangedLines]:
    """The hunks in which the numbers of a setting stand, or two of the same ratio, if one fits."""
    fitting: list[ChangedLines] = []
    for setting in settings:
        able = [hunk for hunk in change.hunks if can_matter(hunk.file) and _fits(hunk, setting)]
        # the very numbers say more than two others of their ratio
        exact = [hunk for hunk in able if _replaces(hunk, setting)]
        candidates = exact or able
        fitting += candidates if len(candidates) == 1 else []
    return list(dict.fromkeys(fitting))


def _passing(
    trace: TraceFinding | None, data: list[ChangedLines], folder: str
) -> list[ChangedLines]:
    """The hunk that may have passed its numbers to the call where two traces part, if one does.

    `data` are those of files that the training opened.
    """
    if trace is None or not trace.numbers:
        return []
    able = [*(_in_repository(hunk, folder) for hunk in trace.changed), *data]
    passing = [hunk for hunk in able if any(_replaces(hunk, number) for number in trace.numbers)]
    return passing if len(passing) == 1 else []


def _replaces(hunk: ChangedLines, change: OptimizerSettingChange | ChangedNumber) -> bool:
    """Whether the number from before was there and is gone, and the other is new."""
    old, new = _numbers(hunk.before), _numbers(hunk.after)
    return _is_in(change.before, old - new) and _is_in(change.after, new - old)


def _fits(hunk: ChangedLines, setting: OptimizerSettingChange) -> bool:
    try:
        before, after = float(setting.before), float(setting.after)
    except ValueError:
        return False
    if _replaces(hunk, setting):
        return True
    old, new = _numbers(hunk.before), _numbers(hunk.after)
    if not before or not math.isfinite(after / before):
        return False
    ratio = after / before
    return any(
        old_number and math.isclose(other / old_number, ratio, rel_tol=NEAR)
        for old_number in old - new
        for other in new - old
    )


def with_typed_numbers(diagnosis: Diagnosis, change: Change | None) -> Diagnosis:
    """The diagnosis, in which only a number that the change took out is one to set again.

    A setting may follow from something else, such as a number of steps or a file of settings.
    """
    hunks = change.hunks if change is not None else ()
    removed = [_numbers(hunk.before) - _numbers(hunk.after) for hunk in hunks]
    settings = tuple(
        setting
        if not setting.revert_to or any(_is_in(setting.revert_to, numbers) for numbers in removed)
        else setting.model_copy(update={"revert_to": ""})
        for setting in diagnosis.optimizer_settings
    )
    return diagnosis.model_copy(update={"optimizer_settings": settings})


def _is_in(word: str, numbers: frozenset[float]) -> bool:
    try:
        return float(word) in numbers
    except ValueError:
        return False


def _numbers(lines: tuple[str, ...]) -> frozenset[float]:
    return frozenset(
        float(match.group().replace("_", "")) for line in lines for match in NUMBER.finditer(line)
    )
