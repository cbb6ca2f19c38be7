"""A tensor of any kind as plain bytes, as a digest and as a file."""
