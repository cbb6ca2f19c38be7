"""A process's knobs, set and read back, and every override of them by the training."""
