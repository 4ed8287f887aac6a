"""DomainError: the root of every app's exception tree.

DomainError
├─ accounts.errors.AccountsError
├─ billing.errors.BillingError
├─ routing.errors.RoutingError
├─ quotas.errors.QuotaError
├─ proxy.errors.ProxyError
└─ config.redis.RedisUnavailable
"""

from typing import Any, ClassVar


class DomainError(Exception):
    """Something a user can be told: a sentence, a stable code, the HTTP status it maps to, and facts.

    `facts` never hold a secret: they travel to answers and logs.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 400

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
