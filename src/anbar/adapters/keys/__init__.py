"""Secrets of tenants, in files that all routers and engines of a deployment share."""
