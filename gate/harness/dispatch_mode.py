"""What is put before torch's dispatcher, by operator audits and by traces."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's own lacks types
    """Sees the operators, also those that only compiled code or higher-order calls have."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let the compiler work as ever: some operators exist in compiled form only."""
        return True
