"""Simple statistics of declared data, made in the confined process that reads untrusted bytes."""
