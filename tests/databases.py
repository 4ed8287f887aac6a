"""The databases of a run's workers: the first to need one migrates its own and leaves a copy, from which the others make theirs."""

import os
from contextlib import ExitStack
from pathlib import Path

from django.db import connection

from tests import plugin

_making = ExitStack()
"""Holds the lock while this worker migrates."""


def begin() -> None:
    """Before the test database is made: waits for a worker that migrates, and takes its copy. The first holds the others back."""
    if plugin.WORKER not in os.environ or plugin.OWN not in os.environ:
        return
    with ExitStack() as held:
        held.enter_context(plugin.locked("template.lock"))
        if _note().exists():
            connection.settings_dict["TEST"]["TEMPLATE"] = _note().read_text()
        else:
            _making.push(held.pop_all())


def end() -> None:
    """After it was made, while nobody is connected."""
    with _making:
        if plugin.WORKER in os.environ and plugin.OWN in os.environ and not _note().exists():
            connection.creation.clone_test_db("template", verbosity=0)
            _note().write_text(connection.creation.get_test_db_clone_settings("template")["NAME"])


def _note() -> Path:
    return Path(os.environ[plugin.OWN]) / "template"
