"""The page: one file of HTML without a script."""
