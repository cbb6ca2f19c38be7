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

from gate.checkpoint.leaves import RAW_DTYPE, Leaf, kind_of

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
    Exclusion(pattern="**/events.out.tfevents*", reason=EVENTS, kinds=frozenset((RAW_DTYPE,))),
    # scores under the names of files, so even the tensors among them move with the folder
    *(
        Exclusion(pattern=f"/callbacks/**/best_k_models{below}", reason=MACHINE_PLACE)
        for below in ("", "/**")
    ),
)


def compiled(pattern: str) -> str:
    """The pattern as a regular expression for a whole path."""
    parts = re.split(r"(\*\*|\*)", pattern)
    return "".join({"**": ".*", "*": "[^/]*"}.get(part) or re.escape(part) for part in parts)


def without_excluded(
    leaves: Iterable[Leaf], exclusions: Sequence[Exclusion]
) -> tuple[list[Leaf], tuple[Excluded, ...]]:
    """The leaves that count, and how many each pattern has left out; the first that fits counts."""
    by_kind: dict[str, tuple[re.Pattern[str], list[Exclusion]]] = {}
    kept: list[Leaf] = []
    counts: dict[Exclusion, int] = {}
    for leaf in leaves:
        kind = kind_of(leaf)
        if kind not in by_kind:
            rules = [rule for rule in exclusions if rule.kinds is None or kind in rule.kinds]
            by_kind[kind] = _matcher(rules), rules
        pattern, rules = by_kind[kind]
        match = pattern.fullmatch(leaf.path) if rules else None
        if match is None or match.lastindex is None:
            kept.append(leaf)
            continue
        # patterns have no groups of their own, so the group that matched is the number of its rule
        rule = rules[match.lastindex - 1]
        counts[rule] = counts.get(rule, 0) + 1
    return kept, tuple(
        Excluded(pattern=rule.pattern, reason=rule.reason, leaves=count)
        for rule, count in counts.items()
    )


def _matcher(exclusions: Sequence[Exclusion]) -> re.Pattern[str]:
    """One expression with a group for each pattern; without patterns it fits nothing."""
    groups = "|".join(f"({compiled(rule.pattern)})" for rule in exclusions)
    return re.compile(groups or r"(?!)", re.DOTALL)
