"""Statement, envelope, keys, package: the seal and its verification."""
