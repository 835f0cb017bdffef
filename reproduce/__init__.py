"""The batch run: every notebook by papermill with a profile's parameters, its figures, and a report.

Run from the repository root: `python -m reproduce --help`.
"""

import sys

# nbformat imports jsonschema, which builds this package's grammar of IRIs wherever it is installed: 3 s of every process, for a
# format that notebooks do not have. None makes its import an ImportError, which jsonschema expects.
sys.modules.setdefault("rfc3987_syntax", None)
