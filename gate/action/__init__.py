"""The GitHub Action: event in, comment, status and outputs out."""
