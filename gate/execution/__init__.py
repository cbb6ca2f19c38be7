"""Plan the runs, prepare their folders and environment, launch them."""
