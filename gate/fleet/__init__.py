"""Every verdict of every gate: history, service levels, metrics."""
