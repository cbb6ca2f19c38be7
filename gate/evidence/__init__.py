"""What a run left behind, read as untrusted bytes and turned into records."""
