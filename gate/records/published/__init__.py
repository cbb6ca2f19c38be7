"""What is published of a verdict beside its reports."""
