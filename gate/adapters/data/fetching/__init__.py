"""Having declared data on this machine: from a path, the web, a remote of DVC, or Git LFS."""
