"""A trace of every operator call, in a further run that the gate makes after a mismatch."""
