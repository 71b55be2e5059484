"""What the site needs, and no more."""

import os

SEGLOG_TOPIC = "orders"

SECRET_KEY = "only for an example"  # noqa: S105 - it keeps nothing secret here
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "orders.urls"
INSTALLED_APPS = ["orders"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("DATABASE", "orders.sqlite3")},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
