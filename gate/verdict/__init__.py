"""From comparisons to one outcome: the lattice."""
