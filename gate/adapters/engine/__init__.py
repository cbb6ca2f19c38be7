"""The container engine, and a container for the training beside the gate's own."""
