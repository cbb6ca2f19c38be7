"""The verbs of the command line: one module a verb, and what they share."""
