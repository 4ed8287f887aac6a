"""Which pool account carries a request: pools, accounts, credentials, strategies."""
