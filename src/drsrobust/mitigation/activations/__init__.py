"""Protections of computed values: clipping and NaN guards at the outputs of layers."""
