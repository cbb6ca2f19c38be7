"""The data flows of the gate, one for each verb, each readable from top to bottom."""
