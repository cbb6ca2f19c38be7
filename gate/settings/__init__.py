"""`repro-gate.yml`, the event and the action's inputs, as typed records."""
