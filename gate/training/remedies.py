"""What to do about an operator that torch says has no deterministic form.

Torch names a kernel, which is not always the function that the user called; the longest beginning
that matches gives the remedy. Source of the list: torch.use_deterministic_algorithms, torch 2.13.
"""

from __future__ import annotations

from types import MappingProxyType

PLAIN = "Replace it, or compute that part on the CPU."
REMEDIES = MappingProxyType(
    {
        "put": "Use index_put_ or scatter with indices that occur once.",
        "max_unpool": "Upsample with interpolate(mode='nearest') or a transposed convolution.",
        "adaptive_avg_pool": "Use avg_pool2d with a fixed kernel, or mean() over the whole image.",
        "adaptive_max_pool": "Use max_pool2d with a fixed kernel, or amax() over the whole image.",
        "avg_pool3d": "Take the mean over the dimensions, or use a convolution.",
        "fractional_max_pool": "Use max_pool2d.",
        "upsample": "Use interpolate(mode='nearest'), or a transposed convolution.",
        "reflection_pad": "Use zero or replicate padding.",
        "nll_loss2d": "Reshape to (N*H*W, C) and use the one-dimensional loss.",
        "ctc_loss": "Compute the loss on the CPU.",
        "embedding_bag": "Use mode='sum' or 'mean'.",
        "histc": "Use bincount on integers, or compute it on the CPU.",
        "bincount": "Leave the weights out, or use index_add_.",
        "median": "Take the middle of sort(stable=True).",
        "grid_sampler": "Compute it on the CPU, or do not ask for its gradient.",
        "cumsum": "Compute it on the CPU, or in integers.",
        "scatter_reduce": "Use reduce='sum' or 'mean'.",
        "kthvalue": "Use sort(stable=True).",
        "Flash Attention": "Do not list it: in full strict mode torch takes its deterministic "
        "form. Replace the other operators of the list instead.",
        "Memory Efficient attention": "Do not list it: in full strict mode torch takes its "
        "deterministic form. Replace the other operators of the list instead.",
    }
)


def remedy_for(operator: str) -> str:
    """What to do instead of this operator."""
    names = (name for name in REMEDIES if operator.lstrip("_").startswith(name))
    best = max(names, key=len, default="")
    return REMEDIES.get(best, PLAIN)


def admitting_entry(operators: tuple[str, ...]) -> str:
    """The lines of repro-gate.yml that would admit these operators."""
    names = ", ".join(f"'{name}'" for name in operators)
    return f"determinism: {{allow_operators: [{names}]}}"
