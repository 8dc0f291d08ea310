"""What `tier_transfer` compares: the store's calls as an engine makes them, and bare loops beside them."""
