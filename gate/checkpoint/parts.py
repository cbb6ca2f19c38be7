"""Which part of a state a leaf belongs to; docs/digest.md states the rule.

The table is made of the keys that real checkpoints use: PyTorch's own examples, Lightning, the
Hugging Face trainers, timm, nanoGPT, DiT, detectron2, Composer, and pairs of adversaries.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

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
