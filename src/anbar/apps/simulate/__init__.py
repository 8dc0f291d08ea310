"""The simulator: a router and its engines in virtual time, from a scenario to figures."""
