"""The sources of nonreproducibility of a cluster, and what the evidence shows of each."""
