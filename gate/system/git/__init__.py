"""Repositories, read without running anything that they configure."""
