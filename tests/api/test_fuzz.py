"""schemathesis over the whole schema: no server error, nothing outside the schema, nothing wrong accepted."""

import pytest

from bench import fuzz

EXAMPLES, SEED = 40, 7


@pytest.mark.django_db(transaction=True)
@pytest.mark.stack
@pytest.mark.timeout(600)
def test_every_operation_keeps_to_the_schema() -> None:
    """With `manage.py fuzz_api` the edges of the schema are called too, and 300 examples."""
    said: list[str] = []
    findings = fuzz.run(examples=EXAMPLES, seed=SEED, has_edges=False, say=said.append)
    assert findings == 0, "\n".join(said)
    operations = [line for line in said if line.startswith("ok ")]
    assert len(operations) > 90, said
