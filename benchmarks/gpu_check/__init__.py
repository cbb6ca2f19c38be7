"""The checks for the first half hour on a GPU; `make gpu-dry` runs those that a CPU can run."""
