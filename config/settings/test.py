"""The test run: short deadlines, cheap password hashes, a clock that tests may move."""

import os

# Tests wait for deadlines; these are the ones of design section 5.
os.environ.setdefault("HOLD_DEADLINE_SECONDS", "3")
os.environ.setdefault("HOLD_RENEW_SECONDS", "1")

from config.settings.base import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
# Nothing is collected: WhiteNoise would warn of a folder that is not there.
STATIC_ROOT = None
WHITENOISE_USE_FINDERS = True
# Each test client has a middleware of its own, which would else go through all files first.
WHITENOISE_AUTOREFRESH = True
# All tests call from one address; the ones about it hold callers back.
API_REQUESTS_PER_MINUTE = 0
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"

# The scripts add the milliseconds in this key to the server's clock, so tests can move the clock; only here.
QUOTAS_CLOCK_OFFSET_KEY = "quotas:test:clock-offset"
