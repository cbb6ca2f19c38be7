"""The knobs of a process, set and read back, and every override of them by the training."""
