"""The GitHub Action: from an event to a request, and to outputs and a commit status."""
