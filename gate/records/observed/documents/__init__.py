"""Documents for a person, made from the evidence and read by nobody who judges."""
