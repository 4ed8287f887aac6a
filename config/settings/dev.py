"""A machine of one's own: `manage.py demo` and `manage.py up`."""

from config.settings.base import *  # noqa: F403

# Static files are served from their sources: no collectstatic before the first page.
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
# Nothing is collected: WhiteNoise would warn of a folder that is not there.
STATIC_ROOT = None
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False
