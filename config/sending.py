"""Sends tasks from processes that are no workers. Celery is imported with the first one: most commands send none."""


def run_job(job_id: int, seconds: int) -> None:
    """Tells a worker of a job; who comes to it later than `seconds` leaves it. Raises what the broker does, at once."""
    from config.celery import app

    app.send_task("accounts.tasks.run_job", args=(job_id,), expires=seconds, ignore_result=True, retry=False)
