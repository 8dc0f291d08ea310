"""Connections between routers: frames, proof of the common secret, listening and dialling."""
