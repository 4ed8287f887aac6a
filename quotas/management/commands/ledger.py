"""`manage.py ledger`: moves usage from the streams into the log, and ends holds that nobody renews. Any number may run."""

import logging
import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from billing import partitions
from config.clock import utc_now
from config.redis import sync_client
from quotas import drain, sweep

logger = logging.getLogger(__name__)


class Command(BaseCommand):
    help = "Drain the usage streams into the log, sweep expired holds, publish configuration versions. Ends at SIGTERM."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="do what is due now, then end")

    def handle(self, *args: Any, once: bool = False, **options: Any) -> None:
        if once:
            redis = sync_client()
            sweep.sweep(redis)
            while drain.drain_all(redis):
                pass
            return
        # The workers keep them ahead; an install without workers gets them here.
        partitions.make_partitions(utc_now())
        stopping = threading.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: stopping.set())
        logger.info("ledger started")
        drain.Ledger(stopped=stopping.is_set).run()
        logger.info("ledger ended")
