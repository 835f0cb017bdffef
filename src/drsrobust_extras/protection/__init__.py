"""Further protections and the errors that they are made for: codes over chips, checksums, faults of memory, field rates."""
