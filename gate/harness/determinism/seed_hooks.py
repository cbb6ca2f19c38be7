"""Hooks the functions that seed a random generator: with which number, and from which line.

Both the common generators and the script's own (`random.Random`, `RandomState`, `default_rng`) are
covered. `random` and `numpy.random` are hooked from their import on, often long before torch, so
calls wait for a subscriber. Processes without torch import this module too, so it imports nothing
heavy.
"""

from __future__ import annotations

import time

from ..user_code import (
    STACK_DEPTH,
    called_by_torch,
    caller_of,
    calling_frame,
    made_by_machinery,
    through_library,
    unseen_by_warnings,
    user_stack,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any

MAX_WAITING = 1000
MAX_VALUE = 100
CLOCK_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)
WRAPPED_UNITS = CLOCK_UNITS[:2]  # finer ones, cut to 32 bits, are anywhere within two seconds
# the script read the clock a moment before the seed is compared with it
NEAR_SECONDS = 2
NOT_GIVEN = "none given"
# packages for reinforcement learning; up to `ENVIRONMENT_FRAMES` frames below theirs NumPy is
# called
ENVIRONMENTS = frozenset(("gymnasium", "gym"))
ENVIRONMENT_FRAMES = 4
OF_AN_ENVIRONMENT = "gymnasium.Env.reset"


class SeedCall:
    """One seeding of a generator.

    `entropy` is true if the number came from the machine, and `clock` if it was the time. `private`
    is true for a generator of the script's own. `importing` is true if a library seeded while the
    line imported it.
    """

    __slots__ = ("clock", "entropy", "generator", "importing", "place", "private", "stack", "value")

    def __init__(
        self, generator: str, value: object, frame: FrameType, *, entropy: bool, private: bool
    ) -> None:
        caller = caller_of(frame)
        self.generator = generator
        self.value = _shown(value)
        # the script passes a number, but that number is the time
        self.clock = not entropy and from_clock(value)
        self.entropy = entropy or self.clock
        self.private = private
        self.place = caller.place
        self.importing = caller.importing
        # the package's own line first: the user's may only loop over what the package creates
        self.stack = (*through_library(frame), *user_stack(frame))[:STACK_DEPTH]


def _shown(value: object) -> str:
    """Return a seed as text, or only its type if it is no number: `str` may show an address."""
    plain = type(value).__module__ in {"builtins", "numpy", "numpy.random.bit_generator"}
    return " ".join(str(value).split())[:MAX_VALUE] if plain else f"[{type(value).__name__}]"


class SeedCalls:
    """Passes calls to the subscriber; keeps them until there is one."""

    def __init__(self) -> None:
        self._waiting: list[SeedCall] = []
        self._callback: Callable[[SeedCall], None] | None = None

    def report(self, call: SeedCall) -> None:
        """Pass on a call, or keep it."""
        if self._callback is not None:
            self._callback(call)
        # the subscriber comes with torch, which many processes never import
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append(call)

    def subscribe(self, callback: Callable[[SeedCall], None]) -> None:
        """Pass all waiting calls, and each later one, to `callback`."""
        self._callback = callback
        for call in self._waiting:
            callback(call)
        self._waiting.clear()


SEED_CALLS = SeedCalls()


def hook_module(module: ModuleType) -> None:
    """Hook functions of `random` or `numpy.random` that seed or create generators."""
    hook_seeding(module, "seed")
    if module.__name__ == "random":
        _hook_random_class(module)
    else:
        _hook_default_rng(module)
        _hook_random_state(module)
        _hook_seed_sequence(module)


def hook_seeding(module: Any, name: str) -> None:
    """Replace a function that seeds a common generator by one that also reports the call."""
    plain: Callable[..., Any] = getattr(module, name)

    def seeding(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        caller = calling_frame(1)
        # torch seeds its data workers itself, from the generator that the training was given
        if not called_by_torch(caller):
            value = args[0] if args else next(iter(kwargs.values()), None)
            given = NOT_GIVEN if value is None else value
            generator = f"{module.__name__}.{name}"
            SEED_CALLS.report(
                SeedCall(generator, given, caller, entropy=value is None, private=False)
            )
        return result

    setattr(module, name, _named(seeding, plain, module.__name__))


def report_private(
    generator: str, value: object, frame: FrameType, *, entropy: bool = False
) -> None:
    """Report a generator of the script's own.

    Skipped are generators that Python's library and torch create for themselves, for example for
    names of temporary files or for data workers.
    """
    if not made_by_machinery(frame):
        SEED_CALLS.report(SeedCall(generator, value, frame, entropy=entropy, private=True))


def _hook_random_class(module: Any) -> None:
    """Hook the one method by which `random.Random` and its subclasses seed themselves."""
    plain = module.Random.seed

    def seed(self: Any, a: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, a, *args, **kwargs)
        value = NOT_GIVEN if a is None else a
        report_private("random.Random", value, calling_frame(1), entropy=a is None)
        return result

    module.Random.seed = _named(seed, plain, module.__name__)


def _hook_default_rng(module: Any) -> None:
    plain = module.default_rng

    def default_rng(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        given = args[0] if args else next(iter(kwargs.values()), None)
        # `default_rng` returns an existing generator unchanged, and wraps a bit generator
        if result is not given and not hasattr(given, "random_raw"):
            # without a seed, the entropy that NumPy drew shows that two runs differ
            value = result.bit_generator.seed_seq.entropy if given is None else given
            report_private(
                "numpy.random.default_rng", value, calling_frame(1), entropy=given is None
            )
        return result

    module.default_rng = _named(default_rng, plain, module.__name__)


def _hook_random_state(module: Any) -> None:
    """Replace `RandomState`, a C class, by a subclass that passes for it in every check."""
    plain = module.RandomState

    class Kind(type):
        """Makes instances and subclasses of the plain class pass as the subclass's, too."""

        def __instancecheck__(cls, other: object) -> bool:
            return (
                isinstance(other, plain) if cls is RandomState else super().__instancecheck__(other)
            )

        def __subclasscheck__(cls, other: type) -> bool:
            return (
                issubclass(other, plain) if cls is RandomState else super().__subclasscheck__(other)
            )

    class RandomState(plain, metaclass=Kind):  # type: ignore[valid-type,misc] # known at run time only
        __slots__ = ()

        def __init__(self, seed: Any = None) -> None:
            super().__init__(seed)
            # `RandomState` around an existing bit generator seeds nothing
            if not hasattr(seed, "random_raw"):
                value = NOT_GIVEN if seed is None else seed
                report_private(
                    "numpy.random.RandomState", value, calling_frame(1), entropy=seed is None
                )

    for name in ("__module__", "__qualname__", "__doc__"):
        setattr(RandomState, name, getattr(plain, name))
    for owner in (module, module.mtrand):
        owner.RandomState = RandomState


def _hook_seed_sequence(module: Any) -> None:
    """Hook `SeedSequence`, by which libraries seed; without entropy it asks the system.

    It is a C class too. NumPy's own C code keeps the plain one.
    """
    plain = module.SeedSequence

    class Kind(type):
        """Makes instances and subclasses of the plain class pass as the subclass's, too."""

        def __instancecheck__(cls, other: object) -> bool:
            own = cls is SeedSequence
            return isinstance(other, plain) if own else super().__instancecheck__(other)

        def __subclasscheck__(cls, other: type) -> bool:
            own = cls is SeedSequence
            return issubclass(other, plain) if own else super().__subclasscheck__(other)

    class SeedSequence(plain, metaclass=Kind):  # type: ignore[valid-type,misc] # known at run time only
        __slots__ = ()

        def __init__(self, entropy: Any = None, **named: Any) -> None:
            super().__init__(entropy, **named)
            if entropy is None:
                frame = calling_frame(1)
                report_private(_maker(frame), self.entropy, frame, entropy=True)

    for name in ("__module__", "__qualname__", "__doc__"):
        setattr(SeedSequence, name, getattr(plain, name))
    for owner in (module, module.bit_generator):
        owner.SeedSequence = SeedSequence


def _maker(frame: FrameType | None) -> str:
    """Return what asked for entropy: an environment reset without a seed, or `SeedSequence`."""
    for _ in range(ENVIRONMENT_FRAMES):
        if frame is None:
            break
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in ENVIRONMENTS:
            return OF_AN_ENVIRONMENT
        frame = frame.f_back
    return "numpy.random.SeedSequence"


def _named(function: Any, plain: Any, module: str) -> Any:
    """Do what `functools.wraps` does, which is slow to import, except for `__wrapped__`."""
    function.__name__ = function.__qualname__ = plain.__name__
    function.__doc__ = plain.__doc__
    function.__module__ = module
    return unseen_by_warnings(function)


def from_clock(value: object) -> bool:
    """Whether a number is the present time, in any usual unit, or cut to 32 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    now = time.time()
    # a clock's value in seconds, milliseconds, microseconds or nanoseconds
    whole = any(abs(value - now * unit) <= NEAR_SECONDS * unit for unit in CLOCK_UNITS)
    return whole or any(
        abs(value - int(now * unit) % 2**32) <= NEAR_SECONDS * unit for unit in WRAPPED_UNITS
    )
