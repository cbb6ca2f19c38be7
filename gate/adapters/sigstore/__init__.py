"""The services of Sigstore, and its verifier."""
