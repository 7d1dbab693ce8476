"""What `emtc bench` runs: each benchmark a module with `run()`, which returns figures with their budgets."""
