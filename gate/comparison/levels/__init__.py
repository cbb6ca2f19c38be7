"""Whether a result that is another one is good enough: over seeds, and over variants."""
