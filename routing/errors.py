"""What routing refuses.

RoutingError
├─ SelectionError
│  ├─ PoolExhausted        every account has used up its window      facts: resets_at (unix seconds)
│  ├─ PoolBusy             every account cools down, shortly         facts: retry_after (whole seconds, at least 1)
│  ├─ AccountsAtCap        every eligible account is at its cap      facts: retry_after
│  ├─ NoAccountAvailable   no account can ever serve this            facts: reason
│  └─ OwnerGone            the account that holds the anchor is gone
├─ CredentialError
│  ├─ SignInNeeded         the account must be signed in again
│  ├─ RefreshDeferred      the issuer could not be asked; later it may work
│  └─ SealBroken           a stored secret cannot be read, or belongs to another row
└─ AccountError
   ├─ TermsNotAccepted     facts: terms (the text to accept)
   ├─ AuthFileInvalid
   ├─ ApiKeyInvalid
   └─ AddressRefused       a base URL that must not be called
"""

from typing import ClassVar

from config.errors import DomainError


class RoutingError(DomainError):
    code: ClassVar[str] = "routing_error"


class SelectionError(RoutingError):
    """No account was leased; nothing is held."""


class PoolExhausted(SelectionError):
    code: ClassVar[str] = "pool_exhausted"
    status: ClassVar[int] = 429

    def __init__(self, resets_at: int) -> None:
        super().__init__("Every account of the pool has used up its limit.", resets_at=resets_at)
        self.resets_at = resets_at


class PoolBusy(SelectionError):
    code: ClassVar[str] = "pool_busy"
    status: ClassVar[int] = 429

    def __init__(self, retry_after: int) -> None:
        super().__init__("Every account of the pool is cooling down. Try again shortly.", retry_after=retry_after)
        self.retry_after = retry_after


class AccountsAtCap(SelectionError):
    code: ClassVar[str] = "concurrency_limit"
    status: ClassVar[int] = 429

    def __init__(self, retry_after: int = 1) -> None:
        super().__init__("Every account of the pool carries as many requests as it may.", retry_after=retry_after)
        self.retry_after = retry_after


class NoAccountAvailable(SelectionError):
    """`reason`: one of SENTENCES."""

    code: ClassVar[str] = "no_account_available"
    status: ClassVar[int] = 400

    SENTENCES: ClassVar[dict[str, str]] = {
        "no_pool": "The organization has no pool of accounts.",
        "no_accounts": "The pool has no accounts.",
        "needs_sign_in": "Every account of the pool needs to be signed in again.",
        "paused": "No account of the pool is serving.",
        "model_not_served": "No account of the pool serves this model.",
        "effort_not_served": "No account of the pool serves this reasoning effort.",
        "tier_not_served": "No account of the pool serves this service tier.",
    }

    def __init__(self, reason: str) -> None:
        super().__init__(self.SENTENCES[reason], reason=reason)
        self.reason = reason


class OwnerGone(SelectionError):
    code: ClassVar[str] = "previous_response_not_found"
    status: ClassVar[int] = 400

    def __init__(self) -> None:
        super().__init__("The account that holds the previous response is gone. Send the whole conversation again.")


class CredentialError(RoutingError):
    code: ClassVar[str] = "credential_error"
    status: ClassVar[int] = 503


class SignInNeeded(CredentialError):
    code: ClassVar[str] = "sign_in_needed"


class RefreshDeferred(CredentialError):
    code: ClassVar[str] = "refresh_deferred"


class SealBroken(CredentialError):
    code: ClassVar[str] = "seal_broken"


class AccountError(RoutingError):
    """An account cannot be added as asked; nothing was changed."""

    code: ClassVar[str] = "account_invalid"


class TermsNotAccepted(AccountError):
    code: ClassVar[str] = "terms_not_accepted"


class AuthFileInvalid(AccountError):
    code: ClassVar[str] = "auth_file_invalid"


class ApiKeyInvalid(AccountError):
    code: ClassVar[str] = "api_key_invalid"


class AddressRefused(AccountError):
    code: ClassVar[str] = "address_refused"
