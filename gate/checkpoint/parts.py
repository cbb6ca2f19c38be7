"""Which part of a state a leaf belongs to; docs/digest.md states the rule."""

from __future__ import annotations

import re

MODEL, OPTIMIZER, RANDOM, OTHER = "model", "optimizer", "random", "other"
PARTS = (MODEL, OPTIMIZER, RANDOM, OTHER)
# A key is a word of the path: text between slashes, brackets and underscores.
RANDOM_KEY = re.compile(r"(?:^|[/_.])(?:rng|random|seed)(?:$|[/_.\[{<])")
OPTIMIZER_KEY = re.compile(r"^(?:/[^/\[{<]*)?/(?:optim[^/\[{<]*|opt(?:_[^/\[{<]*)?)(?:$|[/\[{<])")
MODEL_KEY = re.compile(
    r"^/(?:model|module|net|network|weights|ema|state_dict)[^/\[{<]*(?:$|[/\[{<])"
)


def part_of(path: str, *, tensor: bool) -> str:
    """The part of the leaf at `path`: by its keys, and what is left by its kind.

    Keys of random states come first, since an optimizer or model may hold one; then a first or
    second key that names an optimizer; the remaining tensors are the model's, and the remaining
    values are `other`, unless the first key names a model.
    """
    # looking for a text costs much less than an expression, and most paths hold none of them
    seldom = "rng" in path or "random" in path or "seed" in path
    if seldom and RANDOM_KEY.search(path) and not MODEL_KEY.match(path):
        return RANDOM
    if "/opt" in path and OPTIMIZER_KEY.match(path):
        return OPTIMIZER
    return MODEL if tensor or MODEL_KEY.match(path) else OTHER
