"""What composes the apps: settings, ASGI and URL tables, Celery, and the few modules every app may import."""
