"""Separates a training from the gate: accounts, sandbox, container engine, cluster."""
