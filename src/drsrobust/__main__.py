"""`python -m drsrobust`, the command `drsrobust`."""

from drsrobust.command import main

main()
