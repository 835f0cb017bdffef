"""Models on a GPU and over the ranks of a process group."""
