"""Pointers to declared data, which a pull request may have written: for the confined process."""
