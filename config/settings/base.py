"""What is true in every environment."""

from pathlib import Path
from typing import Any

import environ as django_environ
from csp.constants import NONE, SELF

from config.database import pool
from config.settings import env as environment

BASE_DIR = Path(__file__).resolve().parent.parent.parent
ENV = environment.read()

WEIR_VAR: Path = ENV.WEIR_VAR or BASE_DIR / "var"
SECRET_KEY: str = ENV.SECRET_KEY
DEBUG = False
PUBLIC_URL: str = ENV.PUBLIC_URL
ALLOWED_HOSTS: list[str] = ENV.ALLOWED_HOSTS
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]

# Ours, read by the apps under the same name as in the environment.
REDIS_URL: str = ENV.REDIS_URL
ENCRYPTION_KEYS: dict[str, str] = ENV.ENCRYPTION_KEYS
KEY_PEPPERS: dict[str, str] = ENV.KEY_PEPPERS
TRUSTED_PROXIES: list[str] = ENV.TRUSTED_PROXIES
UPSTREAM_CHATGPT_URL: str = ENV.UPSTREAM_CHATGPT_URL
UPSTREAM_OPENAI_URL: str = ENV.UPSTREAM_OPENAI_URL
UPSTREAM_ANTHROPIC_URL: str = ENV.UPSTREAM_ANTHROPIC_URL
UPSTREAM_AUTH_URL: str = ENV.UPSTREAM_AUTH_URL
OAUTH_CLIENT_ID: str = ENV.OAUTH_CLIENT_ID
UPSTREAM_ALLOWED_NETWORKS: list[str] = ENV.UPSTREAM_ALLOWED_NETWORKS
PROXY_MAX_BODY_BYTES: int = ENV.PROXY_MAX_BODY_BYTES
UPSTREAM_CONNECT_TIMEOUT_SECONDS: float = ENV.UPSTREAM_CONNECT_TIMEOUT_SECONDS
UPSTREAM_HEADER_TIMEOUT_SECONDS: float = ENV.UPSTREAM_HEADER_TIMEOUT_SECONDS
UPSTREAM_IDLE_TIMEOUT_SECONDS: float = ENV.UPSTREAM_IDLE_TIMEOUT_SECONDS
HEARTBEAT_SECONDS: float = ENV.HEARTBEAT_SECONDS
DISCONNECT_GRACE_SECONDS: float = ENV.DISCONNECT_GRACE_SECONDS
DRAIN_SECONDS: float = ENV.DRAIN_SECONDS
HOLD_DEADLINE_SECONDS: float = ENV.HOLD_DEADLINE_SECONDS
HOLD_RENEW_SECONDS: float = ENV.HOLD_RENEW_SECONDS
KEY_ROTATION_GRACE_SECONDS: float = ENV.KEY_ROTATION_GRACE_SECONDS
API_REQUESTS_PER_MINUTE: int = ENV.API_REQUESTS_PER_MINUTE
USAGE_RETENTION_MONTHS: int | None = ENV.USAGE_RETENTION_MONTHS
PAYMENT_WEBHOOK_SECRETS: dict[str, tuple[str, ...]] = ENV.PAYMENT_WEBHOOK_SECRETS

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "unfold.contrib.filters",
    "config.admin_app.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "csp",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "channels",
    "config",
    "accounts",
    "billing",
    "routing",
    "quotas",
    "proxy",
    "api",
]

MIDDLEWARE = [
    "config.middleware.TrustedProxyMiddleware",
    "config.middleware.RequestContextMiddleware",
    "config.middleware.PatienceMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "config.middleware.AdminPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "accounts.vouching.VouchedSessionMiddleware",
    "accounts.languages.LanguageMiddleware",
    "config.middleware.ScopeMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "accounts.sessions.SeenMiddleware",
    "accounts.second_factor.SecondFactorMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "accounts.context.shell",
            ],
        },
    }
]

# The pool is psycopg's; CONN_MAX_AGE must stay 0 with it.
_database: dict[str, Any] = dict(django_environ.Env.db_url_config(ENV.DATABASE_URL))
_database["ENGINE"] = "config.database"
# A server that does not even refuse is given up in time: one that cannot be reached, and one that has gone without a word.
_database["OPTIONS"] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    **_database.get("OPTIONS", {}),
    "pool": pool.options(),
}
_database["CONN_MAX_AGE"] = 0
# `config.database` does that: it asks a pooled connection before it is used, and replaces it and its likes if it is dead.
_database["CONN_HEALTH_CHECKS"] = False
DATABASES: dict[str, dict[str, Any]] = {"default": _database}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "cache",
    }
}
CHANNEL_REDIS_URL: str = ENV.CHANNEL_REDIS_URL or REDIS_URL
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [CHANNEL_REDIS_URL], "prefix": "channels"},
    }
}

CELERY_BROKER_URL: str = ENV.CELERY_BROKER_URL or REDIS_URL
CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": "celery:", "visibility_timeout": 3600}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_ACKS_LATE = True
CELERY_TIMEZONE = "UTC"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False

AUTH_USER_MODEL = "accounts.User"
# The first is for who proves who they are to us; the other for whom an organization's provider vouches.
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend", "accounts.vouching.VouchedBackend"]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_ADAPTER = "accounts.adapter.AccountAdapter"
ACCOUNT_LOGOUT_REDIRECT_URL = "/accounts/login/"
ACCOUNT_PREVENT_ENUMERATION = True
# No mail to whoever's address somebody types in; the page answers the same either way.
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False
# Who signs in is told of each change of how they do.
ACCOUNT_EMAIL_NOTIFICATIONS = True
ACCOUNT_REAUTHENTICATION_METHODS = ("password", "mfa")

MFA_ADAPTER = "accounts.mfa_adapter.MFAAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_PASSKEY_SIGNUP_ENABLED = False
MFA_RECOVERY_CODES_SHOW_ONCE = True
# A phone's clock may be half a minute off.
MFA_TOTP_TOLERANCE = 1
# Nobody signs up: addresses are the ones that people were invited by.
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_FORMS = {
    "activate_totp": "accounts.mfa_forms.ActivateForm",
    "add_webauthn": "accounts.mfa_forms.AddForm",
    "authenticate_webauthn": "accounts.mfa_forms.AuthenticateForm",
    "edit_webauthn": "accounts.mfa_forms.RenameForm",
    "login_webauthn": "accounts.mfa_forms.LoginForm",
    "reauthenticate_webauthn": "accounts.mfa_forms.ReauthenticateForm",
}
# `accounts.sessions` does it, once a minute.
USERSESSIONS_TRACK_ACTIVITY = False
ADMIN_SECOND_FACTOR: bool = ENV.ADMIN_SECOND_FACTOR

SOCIALACCOUNT_ADAPTER = "accounts.social_adapter.SocialAdapter"
# Nothing of an organization's provider is kept but who it names.
SOCIALACCOUNT_STORE_TOKENS = False
SOCIALACCOUNT_EMAIL_AUTHENTICATION = False

SESSION_ENGINE = "django.contrib.sessions.backends.db"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = PUBLIC_URL.startswith("https://")
CSRF_COOKIE_SECURE = SESSION_COOKIE_SECURE
CSRF_COOKIE_HTTPONLY = False
# Believed because TrustedProxyMiddleware removes the header of everyone but TRUSTED_PROXIES.
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "img-src": [SELF, "data:"],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("ru", "Русский"), ("vi", "Tiếng Việt")]
LOCALE_PATHS = [BASE_DIR / "locale"]
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = True
FORMAT_MODULE_PATH = ["config.formats"]

STATIC_URL = "/static/"
STATIC_ROOT: Path | None = WEIR_VAR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

if ENV.EMAIL_URL:
    _mail = django_environ.Env.email_url_config(ENV.EMAIL_URL)
    EMAIL_BACKEND = _mail["EMAIL_BACKEND"]
    EMAIL_HOST = _mail.get("EMAIL_HOST") or "localhost"
    EMAIL_PORT = _mail.get("EMAIL_PORT") or 25
    EMAIL_HOST_USER = _mail.get("EMAIL_HOST_USER") or ""
    EMAIL_HOST_PASSWORD = _mail.get("EMAIL_HOST_PASSWORD") or ""
    EMAIL_USE_TLS = bool(_mail.get("EMAIL_USE_TLS"))
    EMAIL_USE_SSL = bool(_mail.get("EMAIL_USE_SSL"))
else:
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = WEIR_VAR / "mail"
# A mail server that hangs must not hold a page.
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL: str = ENV.DEFAULT_FROM_EMAIL

# Uploads of proxied requests never pass Django; this is for its own forms and API (L5).
DATA_UPLOAD_MAX_MEMORY_SIZE = 5 * 1024 * 1024

REST_FRAMEWORK = {
    "EXCEPTION_HANDLER": "config.rest.exception_handler",
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    # `format` is a parameter like any other: one that no view takes.
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_SCHEMA_CLASS": "api.schema.OperationSchema",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Weir",
    "DESCRIPTION": "Everything that the pages do. A token (`Authorization: Bearer wt_…`) acts as one member of one organization.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "COMPONENT_SPLIT_PATCH": False,
    "POSTPROCESSING_HOOKS": ["api.schema.with_components"],
    "SORT_OPERATIONS": False,
}

LOGGING_CONFIG = "config.logging.configure"
LOGGING: dict[str, Any] = {"level": "INFO"}

UNFOLD = {
    "SITE_TITLE": "Weir",
    "SITE_HEADER": "config.admin_site.site_header",
    "SITE_URL": "/",
    "SHOW_HISTORY": "config.admin_site.show_history",
    "SHOW_BACK_BUTTON": True,
    "DASHBOARD_CALLBACK": "config.admin_dashboard.fill",
    "SIDEBAR": {"show_search": True},
    "STYLES": ["config.admin_site.stylesheet"],
    "SCRIPTS": ["config.admin_site.script"],
    # Our own accent (static/css/tokens.css) in place of unfold's purple.
    "COLORS": {
        "primary": {
            "50": "oklch(97% 0.015 212)",
            "100": "oklch(94% 0.027 212)",
            "200": "oklch(88% 0.045 212)",
            "300": "oklch(80% 0.075 213)",
            "400": "oklch(73% 0.095 214)",
            "500": "oklch(56% 0.095 217)",
            "600": "oklch(46% 0.08 218)",
            "700": "oklch(40% 0.07 219)",
            "800": "oklch(34% 0.055 220)",
            "900": "oklch(29% 0.045 220)",
            "950": "oklch(22% 0.035 220)",
        }
    },
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": f"{STATIC_URL}img/icon.svg"}],
}
SILENCED_SYSTEM_CHECKS: list[str] = []
