"""What a number rests on."""
