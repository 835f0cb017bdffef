"""Protections of stored words: codes, copies, checksums, range checks."""
