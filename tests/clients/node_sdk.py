"""The OpenAI SDK for Node, unmodified and pinned by package-lock.json, driven by node_sdk.mjs."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.clients import codex

SCRIPT = Path(__file__).with_name("node_sdk.mjs")


def run(*operations: dict[str, Any], base_url: str, key: str, retries: int = 0, timeout: float = 60) -> list[dict[str, Any]]:
    """What each operation came to, in order: its result, or {"error": {"name", "status", "code", "type", "message"}}.

    Blocks. Raises subprocess.TimeoutExpired. Ends the test if the SDK cannot be had.
    """
    node, _ = codex.command()
    folder = codex.install_folder()
    # Beside node_modules, where its imports are found.
    script = Path(shutil.copy(SCRIPT, folder / f"node_sdk-{os.getpid()}.mjs"))
    try:
        given = json.dumps({"baseURL": base_url, "apiKey": key, "maxRetries": retries, "operations": operations})
        environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        done = subprocess.run(
            [node, str(script)], input=given, env=environ, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False
        )
    finally:
        script.unlink()
    assert done.returncode == 0, done.stderr[-1000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
