"""A server: static files collected and hashed, TLS ends at a trusted proxy."""

from config.settings.base import *  # noqa: F403

SECURE_HSTS_SECONDS = 31_536_000 if PUBLIC_URL.startswith("https://") else 0  # noqa: F405
