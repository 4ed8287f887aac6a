"""`python -m tests.races --seconds 60 --processes 4 --seed 7`: a race of any length, with its audit."""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.races", description="Races the engine, then audits every sum.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    # Importing it starts a PostgreSQL and a Valkey unless DATABASE_URL and REDIS_URL name some.
    from tests import plugin

    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings.test"
    try:
        import django

        django.setup()
        from django.db import connection
        from django.test.utils import setup_test_environment

        setup_test_environment()
        name = connection.settings_dict["NAME"]
        connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        from config.redis import sync_client
        from tests.races import stage

        redis = sync_client()
        if redis.dbsize() and not redis.exists(plugin.MARKER):
            parser.error("REDIS_URL names a server that holds keys. Races empty theirs: name an empty one, or none.")
        # Its keys hold row ids, and those begin anew with the database.
        redis.flushall()
        redis.set(plugin.MARKER, 1)
        try:
            with tempfile.TemporaryDirectory(prefix="weir-races-") as folder:
                began = time.monotonic()
                _, counted = stage.run(Path(folder), seconds=given.seconds, processes=given.processes, seed=given.seed)
                counted["took"] = round(time.monotonic() - began, 1)
        finally:
            connection.creation.destroy_test_db(name, verbosity=0)
        sys.stdout.write(json.dumps(counted, indent=2) + "\n")
        sys.stdout.write("counters = ledger = log = rollups; no hold is left; no limit was passed.\n")
    finally:
        plugin.stop()


if __name__ == "__main__":
    main()
