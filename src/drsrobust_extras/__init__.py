"""What is no core of `drsrobust`, a room each: `protection`, `data`, `scale`, `risk`, `experiments`, `pages`.

Rooms import the faces of `drsrobust` and `drsrobust.extend` alone (tests/test_wall.py); pyproject.toml has their order.
"""
