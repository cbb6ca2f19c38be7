"""A trace of every operator call, in a rerun that the gate asks for after a mismatch."""
