"""Celery doors of long work. Each may run twice."""

from celery import shared_task

from accounts import job_running
from config.clock import utc_now


@shared_task
def run_job(job_id: int) -> str:
    """Does the job unless somebody is at it, or it is over; its state after that."""
    return job_running.run(job_id)


@shared_task
def take_up_jobs() -> int:
    """Waiting jobs that no worker was told of, and those whose worker has died; how many."""
    return job_running.take_up(utc_now())


@shared_task
def forget_old_jobs() -> int:
    """Removes files that are over or not their asker's any more, and old jobs; how many files."""
    return job_running.forget(utc_now())
