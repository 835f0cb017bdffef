"""Rows of your own, raw files to data sets, generated sets, and the models of the study."""
