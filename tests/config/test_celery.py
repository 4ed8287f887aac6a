"""Workers and beat started by a bare command line do what the launcher's do."""

from config.beat import LockedScheduler
from config.celery import QUEUES, app
from config.launch import stack


def test_a_worker_that_is_told_of_no_queue_takes_from_every_queue_that_tasks_go_to() -> None:
    taken = set(app.amqp.queues.consume_from)
    assert taken == set(QUEUES) == {*stack.QUEUES.split(","), stack.LONG}
    assert {route["queue"] for route in app.conf.task_routes.values()} <= taken
    assert app.conf.task_default_queue in taken


def test_no_queue_gets_the_tasks_of_another() -> None:
    """On a direct exchange two queues with one routing key would each get a copy."""
    bound = [(queue.exchange.name, queue.routing_key) for queue in app.amqp.queues.consume_from.values()]
    assert len(set(bound)) == len(bound)


def test_beat_shares_its_lock_without_being_told_to() -> None:
    assert app.conf.beat_scheduler == f"{LockedScheduler.__module__}:{LockedScheduler.__qualname__}"


def test_what_beat_sends_is_a_task_that_workers_know_and_what_it_sends_often_expires() -> None:
    """A worker that was down for an hour is not met by an hour of looks for what is due."""
    app.loader.import_default_modules()
    for name, entry in app.conf.beat_schedule.items():
        assert entry["task"] in app.tasks, name
        if entry["schedule"] < 30:
            assert 0 < entry["options"]["expires"] <= 30, name
