"""Tables of determinism: knobs, their prices, operators that torch's flag does not cover."""
