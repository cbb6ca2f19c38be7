"""Which part of a state a leaf belongs to, and which leaves a digest leaves out.

The table is made of the keys that real checkpoints use: PyTorch's own examples, Lightning, the
Hugging Face trainers, timm, nanoGPT, DiT, detectron2, Composer, and pairs of adversaries.

A pattern is a path in which `*` stands for anything but a slash and `**` for anything at all.
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
# The words of snake_case, camelCase and capitals: `lr_scheduler`, `lrScheduler`, `EMAModel`.
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# `state_dict()` of every torch optimizer has these two, whatever the script calls it.
INSIDE_AN_OPTIMIZER = re.compile(r"/param_groups(?:$|\[)|/state\{")

OPTIMIZER_NAMES = ("optim.", "optimizer.")

# In the order in which they are asked.
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
    """The part of the leaf at `path`: the first key that tells one decides.

    Without such a key a tensor is the model's and a value is `other`. `kind` is the leaf's dtype
    or kind.
    """
    # looking for a text costs much less than an expression, and most paths hold none of them
    seldom = "/param_groups" in path or "/state{" in path
    if seldom and INSIDE_AN_OPTIMIZER.search(path):
        return OPTIMIZER
    above, _, last = path.rpartition("/")
    if _is_plain_dotted(last) and not _tells(above):
        # most leaves: a parameter in a dictionary that has many of them
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
    """Whether the last part of a path is a key with a dot, and one that tells nothing."""
    if "." not in last or last.startswith(OPTIMIZER_NAMES):
        return False
    return "[" not in last and "{" not in last and "<" not in last


def _holds_options(path: str, end: int) -> bool:
    """`opt` is an optimizer or a namespace of options; only the first has a state."""
    return not path.startswith(("/state", "/param_groups"), end)


def _part_of_leaf(key: str, part: str, *, plain: bool) -> str:
    """The part of a leaf that lies at the telling key itself."""
    if key == "generator":
        # what torch.Generator.get_state() gives; a network of this name has keys below
        return RANDOM
    # `model_name` tells of a model and is none
    return OTHER if plain and part in {MODEL, OPTIMIZER} else part


def _part_of_dotted(key: str) -> str | None:
    """A key with a dot is a parameter's name and tells nothing, but for two."""
    return OPTIMIZER if key.startswith(OPTIMIZER_NAMES) else None


@lru_cache(maxsize=4096)
def _tells(above: str) -> bool:
    """Whether any key of a path tells a part."""
    keys = KEYS.findall(above)
    return any(_part_of_dotted(key) if "." in key else _part_of_key(key) for key in keys)


@lru_cache(maxsize=4096)
def _part_of_key(key: str) -> str | None:
    """What one key without a dot tells."""
    words = frozenset(word.lower() for word in WORDS.findall(key))
    if any(word == "opt" or word.startswith("optim") for word in words):
        words |= {"optimizer"}
    if words >= {"state", "dict"}:
        words |= {"model"}
    return next((part for known, part in _ASKED if words & known), None)


# Names combine, so the order decides: `optimizer_config` holds settings, `model_optimizer` is an
# optimizer, `ema_scheduler` is a schedule and no averaged model.
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
# Names alone mislead: `drop_path` is a rate, `embed_time` a switch, `lead_time` a number of steps.
TEXTS = frozenset(("none", "text", "bytes", "name", "object"))
CLOCKS = TEXTS | {"float"}
CLOCKS_AND_COUNTS = CLOCKS | {"int"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """A pattern and why it is left out; of `kinds` only, where those are given.

    The patterns that come with us name their kinds, and but for one never that of a tensor.
    """

    pattern: str
    reason: str
    kinds: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded:
    """What a pattern has left out."""

    pattern: str
    reason: str
    leaves: int


# Objects that are such a place, time or version. Any other is kept, whatever its key is called:
# making it may run code.
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
# The range of a size, as torch.compile notes it.
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
# The value itself, members of a sequence, and what an object such as a path or a date was made of.
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
    # scores under the names of files, so even the tensors among them move with the folder
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
# Classes of these need no remark, and neither do plain values of Python's own.
USUAL_PACKAGES: Final = frozenset(("collections", "numpy", "torch"))
USUAL: Final = HARMLESS | {f"builtins:{name}" for name in ("complex", "range", "slice")}
MAX_CALLS: Final = 5
STEPS: Final = re.compile(r"[/\[{<]")
# No kind of a leaf: what rules with kinds never fit.
CALLED: Final = "call"


def compiled(pattern: str) -> str:
    """The pattern as a regular expression for a whole path."""
    parts = re.split(r"(\*\*|\*)", pattern)
    return "".join({"**": ".*", "*": "[^/]*"}.get(part) or re.escape(part) for part in parts)


def without_excluded(
    leaves: Iterable[Leaf], exclusions: Sequence[Exclusion]
) -> tuple[list[Leaf], tuple[Excluded, ...]]:
    """The leaves that count, and how many each pattern has left out; the first that fits counts."""
    leaves = list(leaves)
    matcher = _Matcher(exclusions)
    # an object whose key calls it a place or a time, and which is none: it counts with all below
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
    """The first rule that fits, by one expression for all rules of a kind."""

    def __init__(self, exclusions: Sequence[Exclusion]) -> None:
        self._exclusions = exclusions
        self._by_kind: dict[str, tuple[re.Pattern[str], list[Exclusion]]] = {}

    def rule(self, path: str, kind: str) -> Exclusion | None:
        """The rule that takes out a leaf of a kind at a path."""
        if kind not in self._by_kind:
            fitting = [
                rule for rule in self._exclusions if rule.kinds is None or kind in rule.kinds
            ]
            self._by_kind[kind] = _expression(fitting), fitting
        pattern, rules = self._by_kind[kind]
        match = pattern.fullmatch(path) if rules else None
        if match is None or match.lastindex is None:
            return None
        # patterns have no groups of their own, so the group that matched is the number of its rule
        return rules[match.lastindex - 1]


def _is_called(leaf: Leaf) -> bool:
    """Whether a leaf is a class or function, or an object of one, that is no place and no time."""
    if not isinstance(leaf, ValueLeaf) or leaf.kind not in {"object", "name"}:
        return False
    return leaf.data.decode("utf-8", "replace") not in HARMLESS


def _is_below(path: str, called: set[str]) -> bool:
    """Whether one of these paths is above a path: what follows it is a step."""
    return any(path[: step.start()] in called for step in STEPS.finditer(path))


def calls_told(leaves: Iterable[Leaf]) -> tuple[str, ...]:
    """A sentence on what loading the file calls, other than torch, NumPy and containers, if any."""
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
    # a name with a dot may lead from a module of torch to any other: `torch.os.system`
    own = module.partition(".")[0] in USUAL_PACKAGES and "." not in name
    return own or maker in USUAL


def _expression(exclusions: Sequence[Exclusion]) -> re.Pattern[str]:
    """One expression with a group for each pattern; without patterns it fits nothing."""
    groups = "|".join(f"({compiled(rule.pattern)})" for rule in exclusions)
    return re.compile(groups or r"(?!)", re.DOTALL)
