"""What `make bench` measures: our code and published tools side by side. Run: `python -m benchmarks NAME`."""
