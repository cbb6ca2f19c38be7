"""The decision, findings and the next step."""
