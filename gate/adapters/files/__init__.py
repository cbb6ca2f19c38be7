"""Regular files, without following a link."""
