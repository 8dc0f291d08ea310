"""The advisor: what it reads, and in which forms it answers."""
