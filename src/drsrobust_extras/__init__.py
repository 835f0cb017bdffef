"""What lies beside the core of `drsrobust`, a room each: `protection`, `data`, `risk`, `experiments`, `pages`."""
