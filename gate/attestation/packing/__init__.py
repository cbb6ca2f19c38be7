"""The package: one archive format, written, read and explained."""
