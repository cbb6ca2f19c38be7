"""A verdict becomes a package, and a pass is sealed."""
