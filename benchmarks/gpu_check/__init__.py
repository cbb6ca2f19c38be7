"""The first half hour on a GPU, part by part; `make gpu-dry` runs what of it a CPU can."""
