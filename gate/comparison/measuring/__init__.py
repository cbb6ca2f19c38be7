"""What the commands `cost` and `noise`, and the gate's own cost figure, make of several runs."""
