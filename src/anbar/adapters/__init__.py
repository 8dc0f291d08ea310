"""The outside world, one package each; adapters do not import each other."""
