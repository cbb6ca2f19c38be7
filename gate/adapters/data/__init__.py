"""Declared data on this machine: fetched, listed, and looked at again."""
