"""What routing refuses.

RoutingError
├─ SelectionError
│  ├─ PoolExhausted        every account has used up its window      facts: resets_at (unix seconds)
│  ├─ PoolBusy             every account cools down, shortly         facts: retry_after (whole seconds, at least 1)
│  ├─ AccountsAtCap        every eligible account is at its cap      facts: retry_after
│  ├─ NoAccountAvailable   no account can ever serve this            facts: reason
│  ├─ OwnerExhausted       (PoolExhausted) the account that holds what the request continues
│  ├─ OwnerBusy            (PoolBusy) the same
│  ├─ OwnerAtCap           (AccountsAtCap) the same
│  └─ OwnerLost            what the request continues cannot be continued: the whole conversation must be sent
│     ├─ OwnerUnknown      nobody is known to hold it
│     ├─ OwnerGone         the account that holds it is gone, or does not serve any more
│     ├─ OwnerUnfit        the account that holds it does not serve such a request
│     └─ OwnersDiffer      it names state of more than one account
├─ CredentialError
│  ├─ SignInNeeded         the account must be signed in again
│  ├─ RefreshDeferred      the issuer could not be asked; later it may work
│  └─ SealBroken           a stored secret cannot be read, or belongs to another row
├─ PoolError
│  ├─ PoolUnknown
│  └─ PoolRefused          a pool cannot be as asked; nothing was changed
├─ FallbackRefused         a model's fallbacks cannot be as asked; nothing was changed
└─ AccountError
   ├─ TermsNotAccepted     facts: terms (the text to accept)
   ├─ AuthFileInvalid
   ├─ AuthFileStale        the pool holds a newer sign-in of that account
   ├─ AccountWithdrawn     its person took it out: only that person's own sign-in brings it back
   ├─ ApiKeyInvalid
   ├─ CredentialRefused    the upstream or its issuer refuses it    facts: reason
   ├─ CredentialUnverified nobody could say; later it may work      facts: reason
   ├─ FlowOver             the sign-in is unknown, used, or has expired
   ├─ CallbackInvalid      what was pasted is not the address that the sign-in came back with
   ├─ LinkInvalid          the link to withdraw an account is unknown or used
   └─ AddressRefused       a base URL that must not be called
"""

from typing import ClassVar

from django.utils.translation import gettext_noop

from config.errors import DomainError

PREVIOUS_RESPONSE = "previous response"


class RoutingError(DomainError):
    code: ClassVar[str] = "routing_error"


class SelectionError(RoutingError):
    """No account was leased; nothing is held. `is_anchored`: because of what the request continues, which one account holds."""

    is_anchored: ClassVar[bool] = False


class PoolExhausted(SelectionError):
    code: ClassVar[str] = "pool_exhausted"
    status: ClassVar[int] = 429

    def __init__(self, resets_at: int, *, message: str = "Every account of the pool has used up its limit.") -> None:
        super().__init__(message, resets_at=resets_at)
        self.resets_at = resets_at


class PoolBusy(SelectionError):
    code: ClassVar[str] = "pool_busy"
    status: ClassVar[int] = 429

    def __init__(self, retry_after: int, *, message: str = "Every account of the pool is cooling down. Try again shortly.") -> None:
        super().__init__(message, retry_after=retry_after)
        self.retry_after = retry_after


class AccountsAtCap(SelectionError):
    code: ClassVar[str] = "concurrency_limit"
    status: ClassVar[int] = 429

    def __init__(
        self, retry_after: int = 1, *, message: str = "Every account of the pool carries as many requests as it may."
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.retry_after = retry_after


class NoAccountAvailable(SelectionError):
    """`reason`: one of SENTENCES."""

    code: ClassVar[str] = "no_account_available"
    status: ClassVar[int] = 400

    SENTENCES: ClassVar[dict[str, str]] = {
        "no_pool": gettext_noop("The organization has no pool of accounts."),
        "no_accounts": gettext_noop("The pool has no accounts."),
        "needs_sign_in": gettext_noop("Every account of the pool needs to be signed in again."),
        "paused": gettext_noop("No account of the pool is serving."),
        "dialect": gettext_noop("No account of the pool speaks this API."),
        "model_not_served": gettext_noop("No account of the pool serves this model."),
        "effort_not_served": gettext_noop("No account of the pool serves this reasoning effort."),
        "tier_not_served": gettext_noop("No account of the pool serves this service tier."),
    }

    def __init__(self, reason: str) -> None:
        super().__init__(self.SENTENCES[reason], reason=reason)
        self.reason = reason


class OwnerExhausted(PoolExhausted):
    is_anchored = True

    def __init__(self, resets_at: int, *, name: str = PREVIOUS_RESPONSE) -> None:
        super().__init__(resets_at, message=f"The account that holds the {name} has used up its limit.")


class OwnerBusy(PoolBusy):
    is_anchored = True

    def __init__(self, retry_after: int, *, name: str = PREVIOUS_RESPONSE) -> None:
        super().__init__(retry_after, message=f"The account that holds the {name} is cooling down. Try again shortly.")


class OwnerAtCap(AccountsAtCap):
    is_anchored = True

    def __init__(self, *, name: str = PREVIOUS_RESPONSE) -> None:
        super().__init__(message=f"The account that holds the {name} carries as many requests as it may.")


class OwnerLost(SelectionError):
    """What clients answer by sending the whole conversation; then any account may serve."""

    is_anchored = True
    code: ClassVar[str] = "previous_response_not_found"
    status: ClassVar[int] = 400

    def __init__(self, message: str, *, name: str) -> None:
        field = {"param": "previous_response_id"} if name == PREVIOUS_RESPONSE else {}
        super().__init__(f"{message} Send the whole conversation again.", **field)


class OwnerUnknown(OwnerLost):
    def __init__(self, *, name: str = PREVIOUS_RESPONSE) -> None:
        super().__init__(f"The {name} was not found.", name=name)


class OwnerGone(OwnerLost):
    def __init__(self, *, name: str = PREVIOUS_RESPONSE) -> None:
        super().__init__(f"The account that holds the {name} is gone.", name=name)


class OwnerUnfit(OwnerLost):
    """`reason`: one of NoAccountAvailable.SENTENCES."""

    def __init__(self, reason: str, *, name: str = PREVIOUS_RESPONSE) -> None:
        what = {"model_not_served": "model", "effort_not_served": "reasoning effort", "tier_not_served": "service tier"}
        super().__init__(f"The account that holds the {name} does not serve this {what.get(reason, 'API')}.", name=name)


class OwnersDiffer(OwnerLost):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"The {one} and the {other} are held by different accounts.", name="")


class CredentialError(RoutingError):
    code: ClassVar[str] = "credential_error"
    status: ClassVar[int] = 503


class SignInNeeded(CredentialError):
    code: ClassVar[str] = "sign_in_needed"


class RefreshDeferred(CredentialError):
    code: ClassVar[str] = "refresh_deferred"


class SealBroken(CredentialError):
    code: ClassVar[str] = "seal_broken"


class PoolError(RoutingError):
    code: ClassVar[str] = "pool_error"


class PoolUnknown(PoolError):
    code: ClassVar[str] = "pool_unknown"
    status: ClassVar[int] = 404


class PoolRefused(PoolError):
    code: ClassVar[str] = "pool_invalid"


class FallbackRefused(RoutingError):
    code: ClassVar[str] = "fallback_invalid"


class AccountError(RoutingError):
    """An account cannot be added as asked; nothing was changed."""

    code: ClassVar[str] = "account_invalid"


class TermsNotAccepted(AccountError):
    code: ClassVar[str] = "terms_not_accepted"


class AuthFileInvalid(AccountError):
    code: ClassVar[str] = "auth_file_invalid"


class AuthFileStale(AccountError):
    code: ClassVar[str] = "auth_file_stale"
    status: ClassVar[int] = 409


class AccountWithdrawn(AccountError):
    code: ClassVar[str] = "account_withdrawn"
    status: ClassVar[int] = 409


class CredentialRefused(AccountError):
    code: ClassVar[str] = "credential_refused"


class CredentialUnverified(AccountError):
    code: ClassVar[str] = "credential_unverified"
    status: ClassVar[int] = 503


class FlowOver(AccountError):
    code: ClassVar[str] = "sign_in_over"
    status: ClassVar[int] = 404

    def __init__(self) -> None:
        super().__init__("This sign-in is not open any more. Start a new one.")


class CallbackInvalid(AccountError):
    code: ClassVar[str] = "callback_invalid"


class LinkInvalid(AccountError):
    code: ClassVar[str] = "link_invalid"
    status: ClassVar[int] = 404

    def __init__(self) -> None:
        super().__init__("This link does not work: the account has been taken out already, or there is a newer link.")


class ApiKeyInvalid(AccountError):
    code: ClassVar[str] = "api_key_invalid"


class AddressRefused(AccountError):
    code: ClassVar[str] = "address_refused"
