"""Long series of small records, held as columns."""
