"""Readers of saved files, without trusting a byte of them."""
