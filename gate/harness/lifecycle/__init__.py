"""A process from the start-up hook to its summary: what it attests, records and writes."""
