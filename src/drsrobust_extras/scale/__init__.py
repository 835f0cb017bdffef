"""Rows that are never in one place, and models over the ranks of a process group."""
