"""The benchmarks. Each module has a function `run()` that returns results with their budgets."""
