"""Send a sealed package to a registry or a tracker, and a verdict to the history."""
