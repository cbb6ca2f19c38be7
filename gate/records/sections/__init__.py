"""The sections of `repro-gate.yml`, each as a document of its own."""
