"""What this package adds to Hydra; imported as `hydra_plugins.rpe_bench`, where alone Hydra takes plugins from."""
