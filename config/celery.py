"""The Celery app and the beat schedule. Nothing on the money path waits for it."""

import os
from typing import Any

from celery import Celery, Task
from kombu import Exchange, Queue

from config import scope

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.prod")


class ScopedTask(Task[..., Any]):
    """Begins with no tenant's rows in sight: a task enters the organization that it works for."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with scope.nothing():
            return super().__call__(*args, **kwargs)


app = Celery("weir", task_cls=ScopedTask)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

app.conf.task_routes = {
    "accounts.tasks.run_job": {"queue": "reports"},
    "routing.tasks.*": {"queue": "tokens"},
    "billing.tasks.*": {"queue": "periods"},
    "quotas.tasks.*": {"queue": "default"},
    "quotas.alerts.tasks.*": {"queue": "alerts"},
}
# A worker that is told of no queue takes from all of them, and not from Celery's default one alone.
QUEUES = ("default", "tokens", "periods", "reports", "alerts")
app.conf.task_queues = [Queue(name, Exchange(name), routing_key=name) for name in QUEUES]
app.conf.task_default_queue = "default"
app.conf.beat_scheduler = "config.beat:LockedScheduler"
app.conf.beat_schedule = {
    "refresh-due-tokens": {"task": "routing.tasks.refresh_due_tokens", "schedule": 60.0},
    # Soon after a reset, so often; one that was not run by the next is of no use any more.
    "poll-due-accounts": {"task": "routing.tasks.poll_due_accounts", "schedule": 5.0, "options": {"expires": 10}},
    "forget-abandoned-sign-ins": {"task": "routing.tasks.forget_abandoned_sign_ins", "schedule": 900.0},
    "open-next-periods": {"task": "billing.tasks.open_next_periods", "schedule": 300.0},
    "close-ended-periods": {"task": "billing.tasks.close_ended_periods", "schedule": 300.0},
    "expire-credits": {"task": "quotas.tasks.expire_credits", "schedule": 300.0},
    "reconcile": {"task": "quotas.tasks.reconcile_all", "schedule": 3600.0},
    "fill-filters": {"task": "quotas.tasks.fill_filters", "schedule": 60.0},
    "watch-server": {"task": "quotas.tasks.watch_server", "schedule": 30.0},
    "watch-for-alerts": {"task": "quotas.alerts.tasks.watch", "schedule": 60.0, "options": {"expires": 55}},
    "watch-everybody-for-alerts": {
        "task": "quotas.alerts.tasks.watch_everybody",
        "schedule": 900.0,
        "options": {"expires": 800},
    },
    "deliver-due-alerts": {"task": "quotas.alerts.tasks.deliver_due", "schedule": 30.0, "options": {"expires": 25}},
    "forget-old-alerts": {"task": "quotas.alerts.tasks.forget_old", "schedule": 86400.0},
    "forget-old-refusals": {"task": "quotas.tasks.forget_old_refusals", "schedule": 86400.0},
    "take-up-jobs": {"task": "accounts.tasks.take_up_jobs", "schedule": 30.0, "options": {"expires": 25}},
    "forget-old-jobs": {"task": "accounts.tasks.forget_old_jobs", "schedule": 3600.0},
    "send-monthly-exports": {"task": "billing.tasks.send_monthly_exports", "schedule": 300.0, "options": {"expires": 290}},
    "make-usage-partitions": {"task": "billing.tasks.make_usage_partitions", "schedule": 21600.0},
    "forget-idempotent-calls": {"task": "api.tasks.forget_idempotent_calls", "schedule": 3600.0},
    "drop-old-usage": {"task": "billing.tasks.drop_old_usage", "schedule": 86400.0},
}
