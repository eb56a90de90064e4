"""Client quotas: their settings, how much of them is used, and requests that are counted (KIP-13, KIP-219)."""
