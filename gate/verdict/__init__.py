"""From comparisons to one outcome: the decision table."""
