"""Sealed packages in a registry of containers: OCI image and distribution specifications 1.1."""
