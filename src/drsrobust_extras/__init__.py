"""What is no core of `drsrobust`, a room each: `protection`, `data`, `risk`, `experiments`, `pages`."""
