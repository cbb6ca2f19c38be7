"""Runs on an MLflow server, over its REST API 2.0."""
