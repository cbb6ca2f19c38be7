"""What a training takes from its surroundings: entropy, clocks, directories, threads, precision."""
