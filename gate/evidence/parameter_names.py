"""What the numbers in the names of an optimizer's state mean: parameters of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gate.evidence.state_manifest import CAPTURED


def parameter_names(names: Mapping[str, str], leaves: Collection[str]) -> dict[str, str]:
    """For the place of a parameter's state in an optimizer, the leaf that is the parameter.

    `names` is rank 0's summary, with keys `<optimizer>/<number>`. It is untrusted: what names no
    leaf of this run's own state is left out, so no other text gets into a report this way.
    """
    places = {key: f"{CAPTURED}/optimizer/{key.replace('/', '/state/')}" for key in names}
    named = ((places[key], f"{CAPTURED}/{name}") for key, name in names.items())
    return {place: leaf for place, leaf in named if leaf in leaves}
