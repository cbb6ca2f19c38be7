"""The formats of saved states, each read into leaves."""
