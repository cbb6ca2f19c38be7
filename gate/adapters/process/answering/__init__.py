"""A process that answers questions, each in a child of its own."""
