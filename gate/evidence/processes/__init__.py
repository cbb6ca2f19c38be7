"""What each process of a run left in the harness's folder, read as untrusted bytes."""
