"""Decide which part of a state a leaf belongs to, and which leaves a digest leaves out.

The words in the tables are keys of real checkpoints: PyTorch's own examples, Lightning, the Hugging
Face trainers, timm, nanoGPT, DiT, detectron2, Composer, and GANs. docs/digest.md
specifies the rules.

A pattern is a path in which `*` stands for any text without a slash and `**` for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gate.checkpoint.leaves import ELEMENT_BYTES, RAW_DTYPE, Leaf, ValueLeaf, kind_of
from gate.text.untrusted_text import short_text

MODEL, OPTIMIZER, RANDOM, OTHER = "model", "optimizer", "random", "other"
PARTS = (MODEL, OPTIMIZER, RANDOM, OTHER)
KEYS = re.compile(r"/([^/\[{<]*)")
# splits snake_case, camelCase and capitals: `lr_scheduler`, `lrScheduler`, `EMAModel`
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# every torch optimizer's `state_dict()` has these two keys, under any name of the optimizer
INSIDE_AN_OPTIMIZER = re.compile(r"/param_groups(?:$|\[)|/state\{")

OPTIMIZER_NAMES = ("optim.", "optimizer.")

# the words by part, in the order in which `_ASKED` tests them
SETTINGS_WORDS: Final = frozenset({
    "args", "arguments", "cfg", "config", "configs", "hparams", "hyper", "kwargs", "settings",
})  # fmt: skip
SURROUNDING_WORDS: Final = frozenset({
    "callbacks", "history", "loops", "meters", "scaler", "sched", "scheduler", "schedulers",
})  # fmt: skip
RANDOM_WORDS: Final = frozenset({"random", "rng", "seed", "seeds"})
MODEL_WORDS: Final = frozenset({
    "backbone", "buffers", "critic", "decoder", "discriminator", "ema", "encoder", "generator",
    "model", "models", "module", "modules", "net", "nets", "network", "networks", "parameters",
    "params", "student", "teacher", "unet", "vae", "weights",
})  # fmt: skip
PROGRESS_WORDS: Final = frozenset({
    "acc", "best", "epoch", "epochs", "iter", "iteration", "iterations", "loss", "losses",
    "metric", "metrics", "score", "step", "steps",
})  # fmt: skip


def part_of(path: str, kind: str, *, tensor: bool) -> str:
    """Return the part that the leaf at `path` belongs to: the first key that names a part decides.

    If no key does, a tensor belongs to `model` and a value to `other`. `kind` is the dtype of a
    tensor or the kind of a value.
    """
    # A substring test costs much less than a regular expression, and most paths contain neither.
    seldom = "/param_groups" in path or "/state{" in path
    if seldom and INSIDE_AN_OPTIMIZER.search(path):
        return OPTIMIZER
    above, _, last = path.rpartition("/")
    if _is_plain_dotted(last) and not _tells(above):
        # Fast path for most leaves: parameters in one dictionary. `_tells` is cached, so the keys
        # above are looked at once.
        return MODEL if tensor else OTHER
    for match in KEYS.finditer(path):
        part = _part_of_dotted(match[1]) if "." in match[1] else _part_of_key(match[1])
        if part is None:
            continue
        if match.end() < len(path):
            return OTHER if match[1] == "opt" and _holds_options(path, match.end()) else part
        return _part_of_leaf(match[1], part, plain=not tensor and kind != "object")
    return MODEL if tensor else OTHER


def _is_plain_dotted(last: str) -> bool:
    """Return whether the last key is a parameter's name, which says nothing about the part."""
    if "." not in last or last.startswith(OPTIMIZER_NAMES):
        return False
    return "[" not in last and "{" not in last and "<" not in last


def _holds_options(path: str, end: int) -> bool:
    """Return whether the key `opt` means options; only an optimizer has a state or groups below."""
    return not path.startswith(("/state", "/param_groups"), end)


def _part_of_leaf(key: str, part: str, *, plain: bool) -> str:
    """Return the part of a leaf that is directly at the deciding key."""
    if key == "generator":
        # torch.Generator.get_state(); a network called `generator` has keys below this one
        return RANDOM
    # a plain value such as `model_name` mentions a model and is not part of one
    return OTHER if plain and part in {MODEL, OPTIMIZER} else part


def _part_of_dotted(key: str) -> str | None:
    """Return the part that a key with a dot names, or None.

    It is a parameter's name and names no part, unless it begins with an optimizer's name.
    """
    return OPTIMIZER if key.startswith(OPTIMIZER_NAMES) else None


@lru_cache(maxsize=4096)
def _tells(above: str) -> bool:
    """Return whether any key of a path names a part."""
    keys = KEYS.findall(above)
    return any(_part_of_dotted(key) if "." in key else _part_of_key(key) for key in keys)


@lru_cache(maxsize=4096)
def _part_of_key(key: str) -> str | None:
    """Return the part that a key without a dot names, or None."""
    words = frozenset(word.lower() for word in WORDS.findall(key))
    if any(word == "opt" or word.startswith("optim") for word in words):
        words |= {"optimizer"}
    if words >= {"state", "dict"}:
        words |= {"model"}
    return next((part for known, part in _ASKED if words & known), None)


# Words combine, so the order matters: `optimizer_config` contains settings, `model_optimizer` is an
# optimizer, and `ema_scheduler` is a schedule and not an averaged model.
_ASKED: Final = (
    (SETTINGS_WORDS, OTHER),
    (frozenset({"optimizer"}), OPTIMIZER),
    (SURROUNDING_WORDS, OTHER),
    (RANDOM_WORDS, RANDOM),
    (MODEL_WORDS, MODEL),
    (PROGRESS_WORDS, OTHER),
)


MACHINE_PLACE = "a path on the machine that saved it"
WALL_CLOCK = "a time of day or a duration"
EVENTS = "TensorBoard's events, which hold times and the name of the machine"
SOFTWARE = "a version of the software, which the environment lists"
# The rules are limited to kinds, because names alone mislead: `drop_path` is a rate, `embed_time` a
# switch, `lead_time` a number of steps.
TEXTS = frozenset(("none", "text", "bytes", "name", "object"))
CLOCKS = TEXTS | {"float"}
CLOCKS_AND_COUNTS = CLOCKS | {"int"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """A pattern of paths that a digest leaves out, and the reason.

    If `kinds` is set, only leaves of these kinds are left out. The built-in rules always set it.
    All but one of them spare tensors.
    """

    pattern: str
    reason: str
    kinds: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded:
    """How many leaves a pattern has left out."""

    pattern: str
    reason: str
    leaves: int


# Classes of objects that are paths, times or versions. An object of any other class is kept under
# any key, because creating it may run code.
PATHS: Final = frozenset({
    f"{module}:{name}" for module in ("pathlib", "pathlib._local") for name in (
        "Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath",
    )
})  # fmt: skip
PLACES_AND_TIMES: Final = PATHS | {
    "datetime:date", "datetime:datetime", "datetime:time", "datetime:timedelta",
    "datetime:timezone", "numpy.dtype", "numpy.scalar", "packaging.version:Version",
    "time:struct_time", "torch.torch_version:TorchVersion", "uuid:UUID", "zoneinfo:ZoneInfo",
    "zoneinfo:ZoneInfo._unpickle",
}  # fmt: skip
NOTES: Final = "what torch.compile has noted of a tensor"
# the range of a size that torch.compile notes
_RANGE: Final = "torch._dynamo.decorators:_DimRange"
_DEFAULTS: tuple[tuple[str, frozenset[str], tuple[str, ...]], ...] = (
    (
        MACHINE_PLACE,
        TEXTS,
        (
            "path", "*_path", "paths", "*_paths", "*dirpath", "dir", "*_dir", "folder", "*_folder",
            "*filename", "*hostname", "*best_model_checkpoint",
        ),
    ),
    (MACHINE_PLACE, CLOCKS_AND_COUNTS, ("local_rank", "*_local_rank")),
    (
        WALL_CLOCK,
        CLOCKS,
        ("time", "*_time", "date", "datetime", "*_runtime", "*_per_second", "*elapsed*"),
    ),
    (WALL_CLOCK, CLOCKS_AND_COUNTS, ("timestamp", "*_timestamp", "*_wct")),
    (SOFTWARE, TEXTS, ("version", "*_version", "*_commit_hash")),
)  # fmt: skip
# suffixes for the value itself, members of a sequence, and what an object such as a path is made
# from
BELOW = ("", "[**", "/~**")
DEFAULT_EXCLUSIONS: tuple[Exclusion, ...] = (
    *(
        Exclusion(pattern=f"**/{name}{below}", reason=reason, kinds=kinds)
        for reason, kinds, names in _DEFAULTS
        for name in names
        for below in BELOW
    ),
    *(
        Exclusion(
            pattern=f"**/~attributes[0]/_dynamo_*{below}",
            reason=NOTES,
            kinds=CLOCKS_AND_COUNTS | {"bool", "empty set", "empty map"},
        )
        for below in ("", "/~**")
    ),
    Exclusion(pattern="**/events.out.tfevents*", reason=EVENTS, kinds=frozenset((RAW_DTYPE,))),
    # The keys are file names, so the path of each score changes with the folder. The scores may be
    # tensors, so this rule covers them too.
    *(
        Exclusion(
            pattern=f"/callbacks/**/best_k_models{below}",
            reason=MACHINE_PLACE,
            kinds=CLOCKS_AND_COUNTS | frozenset(ELEMENT_BYTES) | {"empty map"},
        )
        for below in ("", "/**")
    ),
)


HARMLESS: Final = PLACES_AND_TIMES | {_RANGE}
# objects of these packages need no note, and neither do Python's own plain values
USUAL_PACKAGES: Final = frozenset(("collections", "numpy", "torch"))
USUAL: Final = HARMLESS | {f"builtins:{name}" for name in ("complex", "range", "slice")}
MAX_CALLS: Final = 5
STEPS: Final = re.compile(r"[/\[{<]")
# not the kind of any leaf, so rules with kinds never match it
CALLED: Final = "call"


def compiled(pattern: str) -> str:
    """Return the pattern as a regular expression for a whole path."""
    parts = re.split(r"(\*\*|\*)", pattern)
    return "".join({"**": ".*", "*": "[^/]*"}.get(part) or re.escape(part) for part in parts)


def without_excluded(
    leaves: Iterable[Leaf], exclusions: Sequence[Exclusion]
) -> tuple[list[Leaf], tuple[Excluded, ...]]:
    """Return the leaves that count, and how many leaves each pattern has left out.

    If several patterns match a leaf, the first one counts.
    """
    leaves = list(leaves)
    matcher = _Matcher(exclusions)
    # objects whose key suggests a path or a time, and whose class is neither: they count, with
    # everything below them
    called = {
        leaf.path
        for leaf in leaves
        if _is_called(leaf) and matcher.rule(leaf.path, kind_of(leaf)) is not None
    }
    kept: list[Leaf] = []
    counts: dict[Exclusion, int] = {}
    for leaf in leaves:
        rule = matcher.rule(leaf.path, CALLED if _is_called(leaf) else kind_of(leaf))
        if rule is None or (rule.kinds is not None and called and _is_below(leaf.path, called)):
            kept.append(leaf)
        else:
            counts[rule] = counts.get(rule, 0) + 1
    return kept, tuple(
        Excluded(pattern=rule.pattern, reason=rule.reason, leaves=count)
        for rule, count in counts.items()
    )


class _Matcher:
    """Finds the first rule that matches, with one regular expression for all rules of a kind."""

    def __init__(self, exclusions: Sequence[Exclusion]) -> None:
        self._exclusions = exclusions
        self._by_kind: dict[str, tuple[re.Pattern[str], list[Exclusion]]] = {}

    def rule(self, path: str, kind: str) -> Exclusion | None:
        """Return the rule that leaves out a leaf of this kind at this path, or None."""
        if kind not in self._by_kind:
            fitting = [
                rule for rule in self._exclusions if rule.kinds is None or kind in rule.kinds
            ]
            self._by_kind[kind] = _expression(fitting), fitting
        pattern, rules = self._by_kind[kind]
        match = pattern.fullmatch(path) if rules else None
        if match is None or match.lastindex is None:
            return None
        # patterns contain no groups, so the matched group has the number of its rule
        return rules[match.lastindex - 1]


def _is_called(leaf: Leaf) -> bool:
    """Return whether a leaf is a class, a function or an object.

    The classes in `HARMLESS` (paths, times, versions) are excepted: they are only values.
    """
    if not isinstance(leaf, ValueLeaf) or leaf.kind not in {"object", "name"}:
        return False
    return leaf.data.decode("utf-8", "replace") not in HARMLESS


def _is_below(path: str, called: set[str]) -> bool:
    """Return whether a path is below one of the `called` paths."""
    return any(path[: step.start()] in called for step in STEPS.finditer(path))


def calls_told(leaves: Iterable[Leaf]) -> tuple[str, ...]:
    """Return a sentence that names the code which loading the file would run, or nothing.

    torch, NumPy and containers are not named.
    """
    makers = {leaf.data for leaf in leaves if isinstance(leaf, ValueLeaf) and leaf.kind == "object"}
    names = sorted(
        name for maker in makers if not _is_usual(name := maker.decode("utf-8", "replace"))
    )
    if not names:
        return ()
    shown = ", ".join(short_text(name.replace(":", ".")) for name in names[:MAX_CALLS])
    more = f" and {len(names) - MAX_CALLS:,} more" if names[MAX_CALLS:] else ""
    return (f"loading it runs code of {shown}{more}",)


def _is_usual(maker: str) -> bool:
    module, _, name = maker.partition(":")
    # a dotted name may lead from a torch module to any other: `torch.os.system`
    own = module.partition(".")[0] in USUAL_PACKAGES and "." not in name
    return own or maker in USUAL


def _expression(exclusions: Sequence[Exclusion]) -> re.Pattern[str]:
    """Return one regular expression with a group for each pattern; without any, nothing matches."""
    groups = "|".join(f"({compiled(rule.pattern)})" for rule in exclusions)
    return re.compile(groups or r"(?!)", re.DOTALL)
