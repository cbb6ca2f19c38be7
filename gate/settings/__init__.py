"""`repro-gate.yml`, the event and the inputs, as typed records."""
