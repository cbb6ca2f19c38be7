"""Hooks around backward passes, batches, optimizer steps, and the replay of CUDA graphs.

During the capture of a graph the host may neither wait nor read. Anything that the harness computed
would become part of the training's graph. So the hooks only remember what passed by. A replay runs
none of the training's Python, so `CUDAGraph.replay` is wrapped: after it each remembered loss has
its new value, and each remembered optimizer has taken a step. The gradients of such a step are
internal to the graph and are not observed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, ClassVar, Final

import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..user_code import inside_backward, unseen_by_warnings

OnBackward = Callable[[torch.Tensor], None]
OnBatch = Callable[[object, bool], None]
OnStep = Callable[[Optimizer], None]
OnError = Callable[[RuntimeError], None]


class _Pass:
    """The roots of a backward pass, reported once: at its end, or before a step inside it.

    A script may step an optimizer in a hook of the pass, as soon as a gradient is there.
    """

    under_way: ClassVar[list[_Pass]] = []

    def __init__(self, roots: tuple[torch.Tensor, ...], note: OnBackward) -> None:
        self._roots = roots
        self._note = note

    def report(self) -> None:
        """Report the roots that have not been reported yet."""
        roots, self._roots = self._roots, ()
        for root in roots:
            self._note(root)


def install(
    on_loss: tuple[OnBackward, OnBackward],
    on_batch: OnBatch,
    on_step: tuple[OnStep, OnStep],
    on_error: OnError,
) -> None:
    """Call back after each backward pass, for each DataLoader's batch, and around each step.

    The first function of `on_loss` takes each root of a backward pass. The second takes the scalar
    of `torch.autograd.grad`, if gradients of parameters were asked for. `on_batch` takes the batch,
    and whether the DataLoader assembled it from samples. A batch that failed to load is not
    reported, and a failed pass only by its error. If a step calls another step, only the outer one
    counts.
    """
    _hook_backward(on_loss[0], on_error)
    _hook_grad(on_loss[1], on_error)
    _hook_batches(on_batch)
    _hook_steps(*on_step)


def _hook_backward(on_backward: OnBackward, on_error: OnError) -> None:
    plain_backward: Any = torch.autograd.backward
    note = outside_compiler(on_backward)

    @functools.wraps(plain_backward)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        tensors = _kept(tensors)
        # a checkpointed part of the model runs a backward pass of its own inside the outer one
        this_pass = _Pass(() if inside_backward() else _roots(tensors), note)
        _Pass.under_way.append(this_pass)
        try:
            plain_backward(tensors, *args, **kwargs)
        except RuntimeError as error:
            on_error(error)
            raise
        finally:
            # even after an error: a later step must not get the loss of a pass that failed
            _Pass.under_way.remove(this_pass)
        this_pass.report()

    # Wrapping this function is the only way to see the loss of a script that does not know the
    # harness; `Tensor.backward` calls it too. Only the wrapper itself is kept from the compiler, so
    # whatever backward runs may be compiled as before.
    torch.autograd.backward = outside_compiler(backward, recursive=False)


def _kept(tensors: Any) -> Any:
    """Return the same values in a form that can be read twice; `parameters()` is an iterator."""
    return tuple(tensors) if isinstance(tensors, Iterator) else tensors


def _roots(tensors: Any) -> tuple[torch.Tensor, ...]:
    """Return the roots that are tensors; a root may also be an edge of the graph."""
    if isinstance(tensors, Mapping):
        tensors = tuple(tensors.values())
    several = tensors if isinstance(tensors, list | tuple) else (tensors,)
    return tuple(root for root in several if isinstance(root, torch.Tensor))


def _hook_grad(on_grad: OnBackward, on_error: OnError) -> None:
    """Hook `torch.autograd.grad`: some scripts update parameters with its result."""
    plain_grad: Any = torch.autograd.grad
    note = outside_compiler(on_grad)

    @functools.wraps(plain_grad)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        outputs, inputs = _kept(outputs), _kept(inputs)
        try:
            gradients = plain_grad(outputs, inputs, *args, **kwargs)
        except RuntimeError as error:
            on_error(error)
            raise
        roots = _roots(outputs)
        # Skip what is not a loss: a derivative by something else than parameters, or a call inside
        # the compiler.
        if len(roots) == 1 and _plain(roots, torch.Tensor) and _plain(_roots(inputs), Parameter):
            note(roots[0])
        return gradients

    # Not hidden from the compiler, which can trace the wrapper: it finds the function by its name
    # in torch.
    torch.autograd.grad = unseen_by_warnings(grad)


def _plain(tensors: tuple[torch.Tensor, ...], kind: type[torch.Tensor]) -> bool:
    """Whether all are of exactly this type, unlike the fakes of the compiler or of `torch.func`."""
    return bool(tensors) and all(type(tensor) is kind for tensor in tensors)


class LoaderWorkers:
    """The largest number of workers that a DataLoader of this process had."""

    most_workers = 0


def _hook_batches(on_batch: OnBatch) -> None:
    plain_next: Any = _BaseDataLoaderIter.__next__

    @functools.wraps(plain_next)
    def next_batch(self: Any) -> Any:
        batch = plain_next(self)
        LoaderWorkers.most_workers = max(
            LoaderWorkers.most_workers, getattr(self, "_num_workers", 0)
        )
        # without auto-collation the value may be a single sample, whose first dimension is no count
        on_batch(batch, bool(getattr(self, "_auto_collation", False)))
        return batch

    # All kinds of loaders, with and without workers, yield through this method.
    _BaseDataLoaderIter.__next__ = unseen_by_warnings(next_batch)  # type: ignore[method-assign]


def _hook_steps(before: OnStep, after: OnStep) -> None:
    wrapper_code = _step_wrapper_code()
    # Number of running steps by optimizer `id`. The stack is walked only if this count does not
    # prove that a step is the outermost: a step may have failed, so that its end was never
    # reported.
    depths: dict[int, int] = {}

    def before_step(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        running = 1
        if id(optimizer) in depths:
            running = _running_steps(optimizer, wrapper_code)
        depths[id(optimizer)] = running
        if running <= 1:
            if inside_backward():
                # the optimizer steps in a hook of the pass: the pass's loss belongs to this step,
                # not the next
                for this_pass in _Pass.under_way:
                    this_pass.report()
            before(optimizer)

    def after_step(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        running = depths.pop(id(optimizer), 0)
        if running != 1:
            running = _running_steps(optimizer, wrapper_code)
        if running <= 1:
            after(optimizer)
        else:
            depths[id(optimizer)] = running - 1

    # torch's own hooks for all optimizers run around the `step` of each subclass, the script's
    # included, and no class has to be replaced.
    register_optimizer_step_pre_hook(outside_compiler(before_step))
    register_optimizer_step_post_hook(outside_compiler(after_step))


def outside_compiler(function: Callable[..., None], *, recursive: bool = True) -> Any:
    """Return the function hidden from the compiler, in case the user compiles the training step.

    The first call of the result imports the compiler, which every optimizer imports anyway. The
    public function for this would import it at once.
    """
    disable: Any = torch._disable_dynamo  # type: ignore[attr-defined]  # noqa: SLF001
    return disable(function, recursive=recursive)


def _step_wrapper_code() -> CodeType:
    """Return the code that torch wraps around each optimizer's `step` to run the hooks."""
    wrap: Any = Optimizer.profile_hook_step
    code: CodeType = wrap(_no_step).__code__
    return code


def _no_step() -> None:
    """Do nothing; torch wraps it, so that the wrapper's code can be read."""


def _running_steps(optimizer: Optimizer, wrapper_code: CodeType) -> int:
    """Return how many wrapped steps of this optimizer are on the stack.

    A subclass whose `step` calls its parent's runs the hooks twice for one step. Only the outer
    call is a step of the training: no other step runs when it ends.
    """
    running = 0
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect offers only slower copies
    while frame is not None:
        # Compare the code first: `f_locals` copies all variables of a frame on each access.
        if frame.f_code is wrapper_code and frame.f_locals["args"][0] is optimizer:
            running += 1
        frame = frame.f_back
    return running


_CAPTURED: Final = "_repro_gate_captured"

# a loss that a backward pass started from, or an optimizer that stepped
Passed = torch.Tensor | Optimizer


class Capture:
    """Losses and optimizer steps of the capture in progress, in this process."""

    def __init__(self) -> None:
        self._passed: list[Passed] = []

    def note(self, passed: Passed) -> None:
        """Remember a backward pass or a step that is being captured."""
        self._passed.append(passed)

    def take(self) -> tuple[Passed, ...]:
        """Return everything from the capture that has just ended, in order."""
        passed, self._passed = tuple(self._passed), []
        return passed


def install_graph_hooks(
    capture: Callable[[], Capture | None], on_replay: Callable[[Passed], None]
) -> None:
    """Hook the end of each capture and each replay; `capture` returns this process's `Capture`."""
    graph: Any = torch.cuda.CUDAGraph
    # `torch.cuda.graph`, `make_graphed_callables` and the compiler's graph trees all use these two
    # methods.
    plain_end, plain_replay = graph.capture_end, graph.replay

    @functools.wraps(plain_end)
    def capture_end(self: Any) -> None:
        active = capture()
        # Take it first, so that a failed capture leaves nothing to the next one.
        passed = () if active is None else active.take()
        plain_end(self)
        setattr(self, _CAPTURED, passed)

    @functools.wraps(plain_replay)
    def replay(self: Any) -> None:
        plain_replay(self)
        # in the order of the capture, so that a loss comes before the step that it led to
        for passed in getattr(self, _CAPTURED, ()):
            on_replay(passed)

    graph.capture_end = capture_end
    graph.replay = replay
