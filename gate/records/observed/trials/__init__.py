"""What runs say that were made to try something."""
