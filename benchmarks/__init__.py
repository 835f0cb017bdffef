"""What `make bench` measures: this package and published tools in one run. Run: `python -m benchmarks NAME`."""
