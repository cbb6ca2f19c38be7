"""HTTP to a service that is handed credentials: bounded, repeated, for one host alone."""
