"""Read saved files of each format, without trusting a byte of them."""
