"""Names of the DNS to addresses and services."""

from anbar.adapters.dns.resolver import Addresses, Resolver, Service, Services

__all__ = ["Addresses", "Resolver", "Service", "Services"]
