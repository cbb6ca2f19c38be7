"""The harness that runs inside the training process; nothing else of gate is there."""
