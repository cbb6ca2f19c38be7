"""Declared data on this machine: fetched, listed, looked at again."""
