"""The wire: ASGI leaves, event streams, the upstream client. No models."""
