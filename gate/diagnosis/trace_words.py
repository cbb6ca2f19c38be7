"""The point at which two traces part, in words that a reader can act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from gate.diagnosis.trace_alignment import Alignment, Calls, values_differ
from gate.evidence.trace import (
    INSTEAD_OF,
    MAX_NOTES,
    Claim,
    NoTrace,
    Origin,
    Phase,
    RankTrace,
    TracedCall,
    TraceFinding,
    TraceRow,
)

ROWS_BEFORE: Final = 4
ROWS_AFTER: Final = 3
SHOWN: Final = 200
TAKES_FROM_OUTSIDE: Final = "aten::lift_fresh"
OWN_GENERATOR: Final = "generator=<Generator>"
NEXT_ARGUMENT: Final = re.compile(r", (?=[A-Za-z_]\w*=)")
REAL: Final = re.compile(r"\w+=-?(\d+\.\d*(e[-+]?\d+)?|\d+e[-+]?\d+)")
OWN: Final = ("aten::", "prims::")
CAST: Final = "aten::_to_copy"
DTYPE: Final = re.compile(r"\bdtype=torch\.(\w+)")
REAL_TYPES: Final = ("float", "bfloat", "half", "double")
# there the call that brought the value is named, and not the one that uses it
OF_THEIR_SOURCE: Final = (
    *(Claim.UNINITIALISED, Claim.OUTSIDE_VALUE, Claim.MEMORY_LAYOUT, Claim.ARRIVAL),
    Claim.COLLECTIVE,
)
# their lines are in no trace
ELSEWHERE: Final = (Origin.WORKER, Origin.PROCESS)
MADE_BY: Final = {
    Origin.WORKER: "a worker of a DataLoader",
    Origin.PROCESS: "another process",
    Origin.LOAD: "torch.load",
    Origin.DEEPCOPY: "copy.deepcopy",
    Origin.STORAGE: "code that fills a storage",
}
# of two commits that repeat themselves: what differs is what was changed
LOOK_AT_CHANGES: Final = {
    Origin.WORKER: (
        "Look at changes to the data, to the data set and to its transforms, which run in the "
        "workers."
    ),
    Origin.PROCESS: "Look at changes to what the other process computes and sends.",
}
LOOK_AT: Final = {
    Origin.WORKER: (
        "Look at what the data set and its transforms compute in the workers: generators without "
        "a seed, the time, the order of files."
    ),
    Origin.PROCESS: "Look at what the other process computes, and in which order it sends.",
    Origin.LOAD: "Look at the file that is loaded, and at what writes it.",
}
SETTING_NAMES: Final = {
    "threads": "the number of threads",
    "cpu_capability": "the CPU capability (ATEN_CPU_CAPABILITY)",
    "mkldnn": "oneDNN (torch.backends.mkldnn)",
    "deterministic_algorithms": "torch.use_deterministic_algorithms",
    "fp32_matmul_precision": "torch.set_float32_matmul_precision",
    "cudnn": "torch.backends.cudnn.enabled",
    "cudnn_benchmark": "torch.backends.cudnn.benchmark",
    "cudnn_deterministic": "torch.backends.cudnn.deterministic",
    "flush_denormal": "torch.set_flush_denormal",
    "torch": "the version of torch",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceDivergence:
    """Where two traces part; `at` are the places in the calls of both.

    `expected` or `observed` is None where only the other run makes the call. `first_use` is the
    observed run's call whose output differs first; `source` is the call that the value came from.
    `left_out_before` is the observed run's call before which the other run alone makes `expected`.
    """

    claim: Claim
    expected: TracedCall | None
    observed: TracedCall | None
    first_use: TracedCall
    at: tuple[int, int]
    expected_calls: Calls
    observed_calls: Calls
    alignment: Alignment
    drift: bool
    rank: int
    source: TracedCall | None = None
    left_out_before: TracedCall | None = None
    apart: tuple[float, float] | None = None
    from_another_rank: bool = False
    settings: tuple[tuple[str, str, str], ...] = ()
    unchecked: str = ""

    @property
    def call(self) -> TracedCall:
        """The call that is named."""
        if self.claim in OF_THEIR_SOURCE and self.source is not None:
            return self.source
        return self.observed or self.expected or self.first_use


def finding_at(
    point: TraceDivergence, received: Sequence[TraceDivergence] = (), *, ranks: int = 1
) -> TraceFinding:
    """The record of a point, with both traces around it; `received` are where it came to others.

    So many `ranks` were traced.
    """
    call = point.call
    sentence, remedy = _WORDS[point.claim](point)
    if (point.rank or ranks > 1) and point.claim is not Claim.COLLECTIVE:
        sentence = f"on rank {point.rank}: {sentence}"
    absolute, relative = point.apart or (None, None)
    other = point.expected.operator if point.expected is not None else ""
    return TraceFinding(
        claim=point.claim,
        sentence=sentence[:1000],
        remedy=remedy,
        rank=point.rank,
        call=(point.observed or point.left_out_before or point.first_use).number,
        step=call.step,
        operator=call.operator,
        expected_operator=other if point.claim is Claim.CODE_PATH else "",
        module=call.module,
        phase=call.phase,
        shapes=call.shapes[:600],
        device=next((value.device for value in (*call.inputs, *call.outputs)), ""),
        arguments=_changed_arguments(point)[:1000],
        real_numbers=_real_numbers_apart(point),
        draws=_draws(point.expected_calls, point.expected)
        is not _draws(point.observed_calls, point.observed),
        precision=_precision(point),
        file=call.file,
        line=call.line,
        forward_place=_forward(call),
        elsewhere=point.source is not None and point.source.origin in ELSEWHERE,
        given=_is_given(point),
        only_uses=_only_uses(point),
        absolute=absolute,
        relative=relative,
        rows=tuple(_rows(point)),
        notes=tuple(
            f"Rank {other.rank} received a different value by {_named(other.call)[:300]}."
            for other in received[:MAX_NOTES]
        ),
    )


def _is_given(point: TraceDivergence) -> bool:
    """Whether a call is given another number, or a value of which no call says who made it."""
    if point.claim is Claim.CODE_PATH:
        return bool(_changed_arguments(point))
    known = point.source is not None and point.source.origin is not Origin.STORAGE
    return point.claim is Claim.OUTSIDE_VALUE and not known


def _draws(calls: Calls, first: TracedCall | None) -> bool:
    """Whether a run draws in the line and module that this call is of, as far as that goes on."""
    if first is None:
        return False
    begin = next((place for place, call in enumerate(calls) if call is first), len(calls))
    here = first.file, first.line, first.module
    own = takewhile(lambda call: (call.file, call.line, call.module) == here, calls[begin:])
    return any(call.random for call in own)


def not_finite_at(call: TracedCall, rank: int, *, infinite: bool) -> TraceFinding:
    """That this call gives the first number of a run that is not finite."""
    word = "infinity" if infinite else "NaN"
    place = f" at {call.file}:{call.line}" if call.file else ""
    if call.phase is Phase.BACKWARD and call.forward_file:
        place = f", in the backward pass of {call.forward_file}:{call.forward_line},"
    taken = any(value.odd == "infinite" for value in call.inputs)
    given = "" if infinite or not taken else ", of an input that contains an infinity"
    return TraceFinding(
        claim=Claim.NOT_FINITE,
        sentence=f"{call.operator}{place} gives the first {word}{given}",
        rank=rank,
        call=call.number,
        step=call.step,
        operator=call.operator,
        phase=call.phase,
        file=call.file or call.forward_file,
        line=call.line if call.file else call.forward_line,
    )


def not_found(why: str, reason: NoTrace) -> TraceFinding:
    """Nothing is claimed; `why` is a sentence without its full stop, which begins in lower case."""
    return TraceFinding(claim=Claim.NOT_FOUND, sentence=why, reason=reason)


def agreement(traces: tuple[RankTrace, ...], *, drift: bool) -> TraceFinding:
    """Two traces without a difference: what that means depends on how far they go."""
    runs = "the traces of base and head" if drift else "two traced runs"
    calls = sum(len(trace.calls) for trace in traces)
    cut = next((trace for trace in traces if trace.ended != "done"), None)
    if cut is not None:
        why = f"the trace ended at call {len(cut.calls):,}, before the window was over"
        return not_found(f"{runs} agree as far as they go; {why}", NoTrace.CUT)
    return not_found(f"{runs} agree in all of their {calls:,} operator calls", NoTrace.AGREE)


def place_words(call: TracedCall) -> str:
    """`at model.py:14 in module fc`, or of the backward pass the line that it belongs to."""
    where = f" at {call.file}:{call.line}" if call.file else ""
    if call.phase is Phase.BACKWARD:
        forward = _forward(call)
        where += " in the backward pass" + (f" of {forward}" if forward and not where else "")
    elif call.phase is Phase.OPTIMIZER:
        where += " in the optimizer's step"
    return where + (f" in module {call.module}" if call.module else "")


def _forward(call: TracedCall) -> str:
    return f"{call.forward_file}:{call.forward_line}" if call.forward_file else ""


def _named(call: TracedCall) -> str:
    return f"{call.operator}{place_words(call)}"


def _nondeterministic(point: TraceDivergence) -> tuple[str, str]:
    call = point.call
    own = not call.operator.startswith(OWN)
    end = f"the {'custom ' if own else ''}operator is nondeterministic"
    if point.drift and own:
        end += ", or the change is inside it"
    return (
        f"{_named(call)} gives a different output for equal inputs: {end}",
        "Replace it by a deterministic operator.",
    )


def _unproven(point: TraceDivergence) -> tuple[str, str]:
    return (
        (
            f"{_named(point.call)} is the first call whose output differs; its inputs look equal, "
            f"but {point.unchecked}"
        ),
        "Look at what this line is given, and at what else may write into it.",
    )


def _setting(point: TraceDivergence) -> tuple[str, str]:
    words = [
        f"{SETTING_NAMES.get(name, name)} is {_instead(before, after, drift=point.drift)}"
        for name, before, after in point.settings
    ]
    return (
        (
            f"{_named(point.call)} gives a different output for equal inputs, because a setting "
            f"differs: {', '.join(words)}"
        ),
        "Look for the line that changes this setting, and set it to one value in each run.",
    )


def _instead(before: str, after: str, *, drift: bool) -> str:
    return f"{after} instead of {before}" if drift else f"{before} in one run, {after} in the other"


def _layout(point: TraceDivergence) -> tuple[str, str]:
    made, use = point.source or point.first_use, point.first_use
    where = (
        "" if made is use else f"; {_named(use)} is the first to compute a different result from it"
    )
    return (
        f"{_named(made)} has equal values in another memory layout{where}",
        "Look at memory formats (channels_last), transposes, .contiguous() and as_strided.",
    )


def _arrival(point: TraceDivergence) -> tuple[str, str]:
    call = point.source or point.first_use
    return (
        (
            f"{_named(call)} takes the message that arrives first, from any rank, and the order of "
            f"arrival differs; {_named(point.first_use)} is the first to use it"
        ),
        "Receive from each rank by its number (src=), in a fixed order.",
    )


def _collective(point: TraceDivergence) -> tuple[str, str]:
    call = point.source or point.first_use
    return (
        (
            f"every rank gives {_named(call)} equal values, and its result differs: it adds in no "
            f"fixed order; {_named(point.first_use)} on rank {point.rank} is the first to use it"
        ),
        (
            "Keep the number of ranks, the algorithm (NCCL_ALGO) and the size of gradient buckets "
            "fixed, and wait for each collective before its result is used."
        ),
    )


def _code_path(point: TraceDivergence) -> tuple[str, str]:
    left, right = point.expected, point.observed
    if point.drift:
        remedy = "Look at this line, and at the changed lines that ran before it."
        sides = ("the base commit", "the head commit")
    else:
        remedy = "Look for a condition that depends on time, on a file, on threads or on memory."
        sides = ("one run", "the other run")
    if left is None or right is None:
        call, side = (left, sides[0]) if left is not None else (right or point.first_use, sides[1])
        draws = " and draws random numbers" if call.random else ""
        return f"{_named(call)} is called in {side} only{draws}", remedy
    if left.operator != right.operator:
        where = place_words(left)
        instead = f"{left.operator}{where if where != place_words(right) else ''}"
        if point.drift:
            return f"{_named(right)} is called instead of {instead}: the code path changed", remedy
        return f"one run calls {_named(right)}, the other {instead}", remedy
    changed = _changed_arguments(point)
    if changed:
        return f"{_named(right)} is called with {changed}", remedy
    return f"{_named(right)} is called on {right.shapes} instead of {left.shapes}", remedy


def _random(point: TraceDivergence) -> tuple[str, str]:
    call = point.call
    own = OWN_GENERATOR in call.arguments
    whose = "a generator of the script's own, whose" if own else "the global generator, whose"
    if point.drift:
        return (
            f"{_named(call)} draws different random numbers from {whose} state is not the base's",
            "Look at changes to seeds and to the number of random draws before this line.",
        )
    return (
        f"{_named(call)} draws different random numbers from {whose} state differs",
        "Give that generator a constant seed."
        if own
        else "Look for what seeds the generator or draws from it in one run only.",
    )


def _outside(point: TraceDivergence) -> tuple[str, str]:
    call, use = point.call, point.first_use
    if point.source is not None and point.source.origin is not Origin.NONE:
        return _made_outside(point, point.source)
    if point.source is not None and point.from_another_rank:
        return (
            (
                f"the value that {_named(call)} received from another rank differs; {_named(use)} "
                "uses it first"
            ),
            (
                "Wait for what isend, irecv and asynchronous collectives return before the tensor "
                "is used; then look at the other ranks, and at collectives that add in no fixed "
                "order."
            ),
        )
    if point.source is not None:
        return (
            (
                f"another thread wrote into a tensor: {_named(call)} (thread {call.thread}); "
                f"{_named(use)} is the first to use it"
            ),
            "Let one thread write into a tensor, and join it before the value is used.",
        )
    changed = _changed_arguments(point)
    if changed:
        return (
            (
                f"a number that goes into {_named(call)} differs: {changed}; it comes from outside "
                "torch"
            ),
            (
                "Look at where this number comes from: the time, Python's or NumPy's generators, a "
                "file."
            ),
        )
    what = "torch.tensor or similar" if call.operator == TAKES_FROM_OUTSIDE else call.operator
    return (
        (
            f"{what}{place_words(call)} receives a different value that no traced operator "
            "produced: it comes from outside torch (NumPy, a file, a Python number), or from "
            "before "
            "the trace"
        ),
        (
            "Look at where this value comes from: unseeded generators, the time, a file, memory "
            "that another thread or process writes."
        ),
    )


def _only_uses(point: TraceDivergence) -> bool:
    """Whether what differs was set or made before the line of the call that is named."""
    if point.claim is Claim.CODE_PATH:
        return point.call.by_module
    taken = point.source is not None or point.call.operator == TAKES_FROM_OUTSIDE
    return point.claim is Claim.OUTSIDE_VALUE and not taken and not _changed_arguments(point)


def _made_outside(point: TraceDivergence, source: TracedCall) -> tuple[str, str]:
    use = "" if source is point.first_use else f"; {_named(point.first_use)} is the first to use it"
    where = place_words(source)
    other = "Look at what fills this memory: NumPy, a file, another process."
    look = LOOK_AT | LOOK_AT_CHANGES if point.drift else LOOK_AT
    return (
        (
            f"a value made outside the traced calls differs, by {MADE_BY[source.origin]}"
            f"{f' (taken{where})' if where else ''}{use}"
        ),
        look.get(source.origin, other),
    )


def _uninitialised(point: TraceDivergence) -> tuple[str, str]:
    return (
        (
            f"memory from {_named(point.call)} is read before it is written, first by "
            f"{_named(point.first_use)}"
        ),
        (
            "Use torch.zeros, or write all of it first. determinism.fill_uninitialized_memory "
            "makes such reads the same in each strict run."
        ),
    )


def _other_tensors(point: TraceDivergence) -> tuple[str, str]:
    other = "the base commit" if point.drift else "the other run"
    return (
        (
            f"{_named(point.call)} takes different tensors than in {other}, or the same ones in a "
            "different order: something outside torch chose them"
        ),
        (
            "Look at what orders or chooses them: a shuffled list, a set, names of files, keys "
            "that differ in each run."
        ),
    )


def _below(point: TraceDivergence) -> tuple[str, str]:
    use = point.first_use
    if point.source is not None:
        return (
            (
                f"a value that {_named(point.source)} left equal differs when {_named(use)} uses "
                "it: it was written below the dispatcher, by NumPy, a custom kernel, another "
                "thread or another process"
            ),
            "Look at what touches this value between the two lines.",
        )
    return (
        (
            f"compiled code{place_words(use)} gives a different result ({use.operator}); what "
            "happens "
            "inside it is below the dispatcher"
        ),
        "Run once without torch.compile: if the difference is gone, it is the compiled kernel.",
    )


def _nothing(_: TraceDivergence) -> tuple[str, str]:
    return "not found", ""


Words = Callable[[TraceDivergence], tuple[str, str]]
_WORDS: Final[dict[Claim, Words]] = {
    Claim.NONDETERMINISTIC_OPERATOR: _nondeterministic,
    Claim.UNPROVEN: _unproven,
    Claim.SETTING: _setting,
    Claim.MEMORY_LAYOUT: _layout,
    Claim.ARRIVAL: _arrival,
    Claim.COLLECTIVE: _collective,
    Claim.CODE_PATH: _code_path,
    Claim.RANDOM_STATE: _random,
    Claim.OUTSIDE_VALUE: _outside,
    Claim.UNINITIALISED: _uninitialised,
    Claim.OTHER_TENSORS: _other_tensors,
    Claim.BELOW_DISPATCHER: _below,
    Claim.NOT_FOUND: _nothing,
}


def _changed_arguments(point: TraceDivergence) -> str:
    """`p=0.8 instead of p=0.9`, of the same operator's two calls."""
    new, gone = _arguments_apart(point)
    if not gone and not new:
        return ""
    return f"{', '.join(new) or 'nothing'}{INSTEAD_OF}{', '.join(gone) or 'nothing'}"


def _real_numbers_apart(point: TraceDivergence) -> bool:
    """Whether the two calls differ in real numbers alone, which choose and order nothing."""
    new, gone = _arguments_apart(point)
    return bool(new or gone) and all(REAL.fullmatch(word) for word in (*new, *gone))


def _precision(point: TraceDivergence) -> str:
    """`bfloat16 instead of float32`, where one side computes in another type of number."""
    left, right = point.expected, point.observed
    if point.claim is not Claim.CODE_PATH:
        return ""
    if left is not None and right is not None and left.operator == right.operator:
        before, after = (_number_type(call) for call in (left, right))
    else:
        # a cast that one side has alone
        casts = [call for call in (left, right) if call is not None and call.operator == CAST]
        if len(casts) != 1 or not casts[0].inputs or _only_moved(point, casts[0]):
            return ""
        before, after = _form_type(casts[0].inputs[0].form), _number_type(casts[0])
        if casts[0] is left:
            before, after = after, before
    real = before.startswith(REAL_TYPES) and after.startswith(REAL_TYPES)
    return f"{after} instead of {before}" if real and before != after else ""


def _only_moved(point: TraceDivergence, cast: TracedCall) -> bool:
    """Whether both sides make such a cast equally often: they do it in another order."""
    left, right = (
        sum(
            (call.operator, call.arguments) == (cast.operator, cast.arguments)
            and [value.form for value in call.inputs] == [value.form for value in cast.inputs]
            for call in calls
        )
        for calls in (point.expected_calls, point.observed_calls)
    )
    return left == right


def _number_type(call: TracedCall) -> str:
    given = DTYPE.search(call.arguments)
    if given is not None:
        return given[1]
    return _form_type(call.inputs[0].form) if call.inputs else ""


def _form_type(form: str) -> str:
    return form.partition(" (")[0].rpartition(" ")[2]


def _arguments_apart(point: TraceDivergence) -> tuple[list[str], list[str]]:
    """The arguments of the observed call alone, and those of the expected call alone."""
    left, right = point.expected, point.observed
    if left is None or right is None or left.operator != right.operator:
        return [], []
    before, after = (NEXT_ARGUMENT.split(call.arguments) for call in (left, right))
    return (
        [word for word in after if word and word not in before],
        [word for word in before if word and word not in after],
    )


def _rows(point: TraceDivergence) -> Iterator[TraceRow]:
    """Both traces around the point, paired as far as they were."""
    pairs = point.alignment.pairs
    place = next((index for index, pair in enumerate(pairs) if pair == point.at), len(pairs))
    for first, second in pairs[max(0, place - ROWS_BEFORE) : place + 1 + ROWS_AFTER]:
        left, right = point.expected_calls[first], point.observed_calls[second]
        yield _row(left, right, here=(first, second) == point.at)
    if place == len(pairs):
        for step in range(1 + ROWS_AFTER):
            left_call = _at(point.expected_calls, point.at[0] + step)
            right_call = _at(point.observed_calls, point.at[1] + step)
            if left_call or right_call:
                yield _row(left_call, right_call, here=step == 0)


def _at(calls: Calls, place: int) -> TracedCall | None:
    return calls[place] if place < len(calls) else None


def _row(left: TracedCall | None, right: TracedCall | None, *, here: bool) -> TraceRow:
    shown = right or left
    return TraceRow(
        expected=_cell(left),
        observed=_cell(right),
        place=(f"{shown.file}:{shown.line}" if shown.file else _forward(shown)) if shown else "",
        state=_state(left, right),
        here=here,
    )


def _cell(call: TracedCall | None) -> str:
    if call is None:
        return ""
    words = f"({call.arguments})" if call.arguments else ""
    return f"{call.number} {call.operator}{words}"[:SHOWN]


def _state(left: TracedCall | None, right: TracedCall | None) -> str:
    if left is None or right is None or left.operator != right.operator:
        return "another call"
    if any(values_differ(*pair) for pair in zip(left.outputs, right.outputs, strict=False)):
        inputs = zip(left.inputs, right.inputs, strict=False)
        same = not any(values_differ(*pair) for pair in inputs)
        return "output differs" if same else "inputs and output differ"
    return "equal"
