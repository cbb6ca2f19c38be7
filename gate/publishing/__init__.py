"""A sealed package goes to a registry, a tracker, a history."""
