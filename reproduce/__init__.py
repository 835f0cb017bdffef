"""The batch run: every notebook by papermill with a profile's parameters, its figures, and a report.

Run from the repository root: `python -m reproduce --help`.
"""
