"""How a training is kept apart from the gate: accounts, sandbox, container engine."""
