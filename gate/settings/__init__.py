"""repro-gate.yml and the run's context become one GateSettings."""
