"""The container engine, and a separate container for the training."""
