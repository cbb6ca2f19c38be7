"""The harness: the only part of gate that runs inside the training process."""
