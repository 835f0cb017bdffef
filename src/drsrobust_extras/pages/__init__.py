"""Figures, reports, campaigns from a file, the command."""
