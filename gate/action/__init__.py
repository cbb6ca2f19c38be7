"""The GitHub Action: reads the event; writes comment, status and outputs."""
