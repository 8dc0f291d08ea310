"""Which blocks to store, load or skip; the store port; the circuit breaker. Pure: no clock, no I/O."""
