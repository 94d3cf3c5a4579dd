"""The Triton code itself. Imported only where a kernel is about to run: Triton need not be installed."""
