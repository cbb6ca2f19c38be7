"""What a verdict is made of beside its comparisons: results of several seeds, explanations."""
