"""The wire protocols: one module each. Pure."""
