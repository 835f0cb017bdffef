"""Algorithm-based fault tolerance: checksums of linear layers and embedding look-ups."""
