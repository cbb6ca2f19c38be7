"""GitHub's REST API: pull requests, statuses, artifacts."""
