"""Describe the point at which two traces diverge, in words that a reader can act on.

One function per claim returns a sentence without a full stop, and a remedy. The sentence states
only what the claim proves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gate.diagnosis.trace_divergence import (
    TAKES_FROM_OUTSIDE,
    TraceDivergence,
    changed_arguments,
    changed_numbers,
    draws_in_line,
    forward_place,
    is_given,
    only_uses,
    precision_words,
    real_numbers_apart,
    rows_around,
)
from gate.evidence.trace import (
    MAX_NOTES,
    Claim,
    NoTrace,
    Origin,
    Phase,
    RankTrace,
    TracedCall,
    TraceFinding,
)

OWN_GENERATOR: Final = "generator=<Generator>"
OWN: Final = ("aten::", "prims::")
# Code of these runs in other processes, so its lines are in no trace.
ELSEWHERE: Final = (Origin.WORKER, Origin.PROCESS)
MADE_BY: Final = {
    Origin.WORKER: "a worker of a DataLoader",
    Origin.PROCESS: "another process",
    Origin.LOAD: "torch.load",
    Origin.DEEPCOPY: "copy.deepcopy",
    Origin.STORAGE: "code that fills a storage",
}
# For two commits that each repeat their own results: what differs is what was changed.
LOOK_AT_CHANGES: Final = {
    Origin.WORKER: (
        "Look at changes to the data, to the data set and to its transforms, which run in the "
        "workers."
    ),
    Origin.PROCESS: "Look at changes to what the other process computes and sends.",
    Origin.LOAD: "Look at changes to the file that is loaded, and to what writes it.",
}
LOOK_AT: Final = {
    Origin.WORKER: (
        "Look at what the data set and its transforms compute in the workers: generators without "
        "a seed, the time, the order of files."
    ),
    Origin.PROCESS: "Look at what the other process computes, and in which order it sends.",
    Origin.LOAD: "Look at the file that is loaded, and at what writes it.",
}
SOURCES_OF_COMMITS: Final = "a setting, a seed, a file, code outside torch."
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


def finding_at(
    point: TraceDivergence, received: Sequence[TraceDivergence] = (), *, ranks: int = 1
) -> TraceFinding:
    """Return the finding for a point, with rows of both traces around it.

    `received` are the points at which other ranks got the differing value. `ranks` is the number of
    ranks that were traced.
    """
    call = point.call
    sentence, remedy = _WORDS[point.claim](point)
    # The sentence on a collective names its ranks itself.
    if (point.rank or ranks > 1) and point.claim is not Claim.COLLECTIVE:
        sentence = f"on rank {point.rank}: {sentence}"
    absolute, relative = point.apart or (None, None)
    other = point.expected.operator if point.expected is not None else ""
    return TraceFinding(
        claim=point.claim,
        # The training chose names and arguments, which may be longer than the record allows.
        sentence=sentence[:1000],
        remedy=remedy,
        rank=point.rank,
        call=(point.observed or point.left_out_before or point.first_use).number,
        step=call.step,
        operator=call.operator,
        # Only a different code path has a different operator on the other side.
        expected_operator=other if point.claim is Claim.CODE_PATH else "",
        module=call.module,
        phase=call.phase,
        shapes=call.shapes[:600],
        device=next((value.device for value in (*call.inputs, *call.outputs)), ""),
        arguments=changed_arguments(point)[:1000],
        real_numbers=real_numbers_apart(point),
        numbers=changed_numbers(point),
        draws=draws_in_line(point.expected_calls, point.expected)
        is not draws_in_line(point.observed_calls, point.observed),
        precision=precision_words(point),
        file=call.file,
        line=call.line,
        forward_place=forward_place(call),
        elsewhere=point.source is not None and point.source.origin in ELSEWHERE,
        given=is_given(point),
        only_uses=only_uses(point),
        absolute=absolute,
        relative=relative,
        rows=tuple(rows_around(point)),
        notes=tuple(
            f"Rank {other.rank} received a different value by {_named(other.call)[:300]}."
            for other in received[:MAX_NOTES]
        ),
    )


def not_finite_at(call: TracedCall, rank: int, *, infinite: bool) -> TraceFinding:
    """Return the finding that this call gives the first number of a run that is not finite."""
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
    """Return a finding without a claim; `why` starts in lower case and has no full stop."""
    return TraceFinding(claim=Claim.NOT_FOUND, sentence=why, reason=reason)


def agreement(traces: tuple[RankTrace, ...], *, drift: bool) -> TraceFinding:
    """Return the finding for two traces without a difference; it says how far the traces go."""
    runs = "the traces of base and head" if drift else "two traced runs"
    every = [call for trace in traces for call in trace.calls]
    followed = [call for call in every if call.thread == 0]
    where = "" if len(followed) == len(every) else " of the thread that trains"
    cut = next((trace for trace in traces if trace.ended != "done"), None)
    if cut is not None:
        why = f"the trace ended at call {len(cut.calls):,}, before the window was over"
        return not_found(f"{runs} agree as far as they go; {why}", NoTrace.CUT)
    return not_found(
        f"{runs} agree in all of their {len(followed):,} operator calls{where}", NoTrace.AGREE
    )


def place_words(call: TracedCall) -> str:
    """Return ` at model.py:14 in module fc`; for a backward call, name the forward line instead.

    The text begins with a space, or is empty where nothing is known.
    """
    where = f" at {call.file}:{call.line}" if call.file else ""
    if call.phase is Phase.BACKWARD:
        forward = forward_place(call)
        where += " in the backward pass" + (f" of {forward}" if forward and not where else "")
    elif call.phase is Phase.OPTIMIZER:
        where += " in the optimizer's step"
    return where + (f" in module {call.module}" if call.module else "")


def _named(call: TracedCall) -> str:
    return f"{call.operator}{place_words(call)}"


def _nondeterministic(point: TraceDivergence) -> tuple[str, str]:
    call = point.call
    # An operator outside torch's namespaces is custom, and a commit may change its code.
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
        f"Look at what {_line(point.call)} is given, and at what else may write into it.",
    )


def _setting(point: TraceDivergence) -> tuple[str, str]:
    # In a drift the sides are base and head; two runs of one commit have no such order.
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
    changed = changed_arguments(point)
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
    call, use, source = point.call, point.first_use, point.source
    if source is not None and source.origin is not Origin.NONE:
        return _made_outside(point, source)
    if source is not None and point.from_another_rank:
        return (
            (
                f"the value that {_named(call)} received from another rank differs; {_named(use)} "
                "uses it first"
            ),
            _of_commits(point, "what the other ranks compute and send.")
            or (
                "Wait for what isend, irecv and asynchronous collectives return before the tensor "
                "is used; then look at the other ranks, and at collectives that add in no fixed "
                "order."
            ),
        )
    if source is not None:
        return (
            (
                f"another thread wrote into a tensor: {_named(call)} (thread {call.thread}); "
                f"{_named(use)} is the first to use it"
            ),
            _of_commits(point, "what that thread computes.")
            or "Let one thread write into a tensor, and join it before the value is used.",
        )
    return _from_nowhere(point)


def _of_commits(point: TraceDivergence, what: str) -> str:
    """Return what to look at for two commits that repeat their results; "" for two runs of one."""
    return f"Look at changes to {what}" if point.drift else ""


def _at(call: TracedCall) -> str:
    """Return ` at model.py:14`; a step may be shown without the sentence that has the line."""
    return f" at {call.file}:{call.line}" if call.file else ""


def _line(call: TracedCall) -> str:
    return f"{call.file}:{call.line}" if call.file else "this line"


def _from_nowhere(point: TraceDivergence) -> tuple[str, str]:
    """Describe a number or tensor that a call is given and that no traced call made."""
    call = point.call
    changed = changed_arguments(point)
    if changed:
        return (
            (
                f"a number that goes into {_named(call)} differs: {changed}; it comes from outside "
                "torch"
            ),
            _of_commits(point, f"where this number comes from: {SOURCES_OF_COMMITS}")
            or (
                f"Look at where the number{_at(call)} comes from: the time, Python's or NumPy's "
                "generators, a file."
            ),
        )
    what = "torch.tensor or similar" if call.operator == TAKES_FROM_OUTSIDE else call.operator
    return (
        (
            f"{what}{place_words(call)} receives a different value that no traced operator "
            "produced: it comes from outside torch (NumPy, a file, a Python number), or from "
            "before the trace"
        ),
        _of_commits(point, f"where this value comes from: {SOURCES_OF_COMMITS}")
        or (
            f"Look at where the value{_at(call)} comes from: unseeded generators, the time, a "
            "file, memory that another thread or process writes."
        ),
    )


def _made_outside(point: TraceDivergence, source: TracedCall) -> tuple[str, str]:
    use = "" if source is point.first_use else f"; {_named(point.first_use)} is the first to use it"
    where = place_words(source)
    changes = "changes to " if point.drift else ""
    other = f"Look at {changes}what fills this memory: NumPy, a file, another process."
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
            # A fill hides the fault, so writing the memory comes first.
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
        _of_commits(point, "what orders or chooses them.")
        or (
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
