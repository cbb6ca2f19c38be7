"""What the verbs `cost` and `noise`, and the gate's own price, make of several runs."""
