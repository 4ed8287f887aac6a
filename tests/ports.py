"""Ports for servers that tests start, outside of the range from which connections get theirs while such a server still starts."""

import random
import socket

LOWEST, HIGHEST = 20_000, 32_000


def free(in_a_row: int = 1) -> int:
    """The first of so many ports of loopback that nobody listens on."""
    while True:
        # Other runs choose theirs at the same time: not from the same numbers.
        first = random.SystemRandom().randrange(LOWEST, HIGHEST - in_a_row)
        try:
            for port in range(first, first + in_a_row):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
