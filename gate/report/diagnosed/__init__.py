"""What a diagnosis found beyond the class of the cause, in words and tables."""
