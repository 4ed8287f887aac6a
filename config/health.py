"""/health/live: the process answers. /health/ready: it can do its work: database, Redis, migrations, and is not told to stop.
/health/status: how well.
"""

import logging
from typing import Any

from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from config import redis as weir_redis
from proxy import lifespan
from quotas import reconcile

logger = logging.getLogger(__name__)


@require_safe
def live(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "live"})


@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """200 when everything answers, else 503; names what is missing, never why. 503 from the moment the process is told to stop."""
    if lifespan.is_draining():
        return JsonResponse({"status": "draining", "checks": {}}, status=503)
    checks = {"database": _database(), "redis": _redis()}
    is_ready = all(checks.values())
    return JsonResponse({"status": "ready" if is_ready else "not ready", "checks": checks}, status=200 if is_ready else 503)


@require_safe
def status(request: HttpRequest) -> JsonResponse:
    """How well it does: 200 and what is degraded, without names or secrets. Drift: differences between counters and log."""
    degraded = [name for name, answers in (("database", _database()), ("redis", _redis())) if not answers]
    drift: dict[str, Any] | None = None
    if "database" not in degraded:
        drift = reconcile.open_drift()
        if drift["differences"]:
            degraded.append("drift")
    return JsonResponse({"status": "degraded" if degraded else "ok", "degraded": degraded, "drift": drift})


_migrated = False


def _database() -> bool:
    global _migrated
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        if not _migrated:
            executor = MigrationExecutor(connection)
            _migrated = not executor.migration_plan(executor.loader.graph.leaf_nodes())
        return _migrated
    except Exception:
        logger.warning("database is not ready", exc_info=True)
        return False


def _redis() -> bool:
    try:
        return bool(weir_redis.sync_client().ping())
    except Exception:
        logger.warning("redis is not ready", exc_info=True)
        return False
