"""GitHub's REST interface."""
