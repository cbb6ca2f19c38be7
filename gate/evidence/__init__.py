"""What a run left behind, read as hostile bytes and turned into records."""
