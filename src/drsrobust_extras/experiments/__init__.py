"""Errors while training, chosen flips, probe rows."""
