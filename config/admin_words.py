"""What the admin calls models, their fields and what unfold says, for readers of other languages.

Names of fields are not written down: Django makes `created at` of `created_at`, everywhere the same. `translate`, which each of our
pages calls as it registers its model, puts a lazy translation of that name in its place. Everything that shows a name reads it from
there (columns, forms, filters, titles, the navigation, unfold's templates), so that one seam serves them all; a hook at each place
would be a dozen, some of them functions that unfold imports by name. Migrations do not see it: they compare what a field was
declared with, not `verbose_name`. In English a name is its own translation.

The words stand here to be found by `makemessages`. They have a context, for a column is not said as a word inside a sentence is:
"12 credits" is declined in Russian. `tests/config/test_admin_words.py` holds the list complete.
"""

from typing import Any

from django.db.models import Model
from django.utils.translation import gettext_noop, ngettext_lazy, override, pgettext_lazy

CONTEXT = "admin"


def translate(model: type[Model], *, plural: Any = "") -> None:
    """Gives the model, its app, its fields and their hints names in the reader's language. Doing it twice does nothing more.

    `plural`: the rows' name, where Django's is none.
    """
    opts = model._meta
    with override("en"):
        # The plural first: it is made of the singular.
        for of, name in (
            (opts, "verbose_name_plural"),
            (opts, "verbose_name"),
            (opts.app_config, "verbose_name"),
            *((field, name) for field in (*opts.fields, *opts.many_to_many) for name in ("verbose_name", "help_text")),
        ):
            if text := str(getattr(of, name)):
                setattr(of, name, named(text))
    if plural:
        opts.verbose_name_plural = plural


def named(text: str) -> Any:
    """A text of the lists below in the language that is active where it is shown."""
    return pgettext_lazy(CONTEXT, text)


# fmt: off
APPS = (
    pgettext_lazy("admin", "Accounts"), pgettext_lazy("admin", "Billing"), pgettext_lazy("admin", "MFA"),
    pgettext_lazy("admin", "Quotas"), pgettext_lazy("admin", "Routing"), pgettext_lazy("admin", "Social Accounts"),
    pgettext_lazy("admin", "User Sessions"),
)
MODELS = (
    pgettext_lazy("admin", "authenticator"), pgettext_lazy("admin", "authenticators"), pgettext_lazy("admin", "user session"),
    pgettext_lazy("admin", "user sessions"), pgettext_lazy("admin", "social account"), pgettext_lazy("admin", "social accounts"),
    pgettext_lazy("admin", "user"), pgettext_lazy("admin", "users"), pgettext_lazy("admin", "organization"),
    pgettext_lazy("admin", "organizations"), pgettext_lazy("admin", "team"), pgettext_lazy("admin", "teams"),
    pgettext_lazy("admin", "member"), pgettext_lazy("admin", "members"), pgettext_lazy("admin", "invitation"),
    pgettext_lazy("admin", "invitations"), pgettext_lazy("admin", "api key"), pgettext_lazy("admin", "API keys"),
    pgettext_lazy("admin", "api token"), pgettext_lazy("admin", "API tokens"), pgettext_lazy("admin", "identity provider"),
    pgettext_lazy("admin", "identity providers"), pgettext_lazy("admin", "idempotent call"),
    pgettext_lazy("admin", "idempotent calls"), pgettext_lazy("admin", "job"), pgettext_lazy("admin", "jobs"),
    pgettext_lazy("admin", "audit event"), pgettext_lazy("admin", "audit events"), pgettext_lazy("admin", "audit head"),
    pgettext_lazy("admin", "audit heads"), pgettext_lazy("admin", "credit lot"), pgettext_lazy("admin", "credit lots"),
    pgettext_lazy("admin", "ledger entry"), pgettext_lazy("admin", "ledger entries"), pgettext_lazy("admin", "purchase"),
    pgettext_lazy("admin", "purchases"), pgettext_lazy("admin", "invoice"), pgettext_lazy("admin", "invoices"),
    pgettext_lazy("admin", "invoice line"), pgettext_lazy("admin", "invoice lines"), pgettext_lazy("admin", "invoice series"),
    pgettext_lazy("admin", "monthly export"), pgettext_lazy("admin", "monthly exports"), pgettext_lazy("admin", "monthly send"),
    pgettext_lazy("admin", "monthly sends"), pgettext_lazy("admin", "rate card"), pgettext_lazy("admin", "rate cards"),
    pgettext_lazy("admin", "rate import"), pgettext_lazy("admin", "rate imports"), pgettext_lazy("admin", "rate"),
    pgettext_lazy("admin", "rates"), pgettext_lazy("admin", "rate alias"), pgettext_lazy("admin", "rate aliases"),
    pgettext_lazy("admin", "rate override"), pgettext_lazy("admin", "rate overrides"), pgettext_lazy("admin", "plan"),
    pgettext_lazy("admin", "plans"), pgettext_lazy("admin", "subscription"), pgettext_lazy("admin", "subscriptions"),
    pgettext_lazy("admin", "subscription period"), pgettext_lazy("admin", "subscription periods"),
    pgettext_lazy("admin", "usage record"), pgettext_lazy("admin", "usage records"), pgettext_lazy("admin", "usage hour"),
    pgettext_lazy("admin", "usage hours"), pgettext_lazy("admin", "pool"), pgettext_lazy("admin", "pools"),
    pgettext_lazy("admin", "pool account"), pgettext_lazy("admin", "pool accounts"), pgettext_lazy("admin", "sign in flow"),
    pgettext_lazy("admin", "sign in flows"), pgettext_lazy("admin", "model fallback"), pgettext_lazy("admin", "model fallbacks"),
    pgettext_lazy("admin", "limit"), pgettext_lazy("admin", "limits"), pgettext_lazy("admin", "model filter"),
    pgettext_lazy("admin", "model filters"), pgettext_lazy("admin", "limit request"), pgettext_lazy("admin", "limit requests"),
    pgettext_lazy("admin", "limit boost"), pgettext_lazy("admin", "limit boosts"), pgettext_lazy("admin", "refusal"),
    pgettext_lazy("admin", "refusals"), pgettext_lazy("admin", "drift"), pgettext_lazy("admin", "usage drain"),
    pgettext_lazy("admin", "usage drains"), pgettext_lazy("admin", "dead letter"), pgettext_lazy("admin", "dead letters"),
    pgettext_lazy("admin", "alert"), pgettext_lazy("admin", "alerts"), pgettext_lazy("admin", "alert rule"),
    pgettext_lazy("admin", "alert rules"), pgettext_lazy("admin", "webhook endpoint"),
    pgettext_lazy("admin", "webhook endpoints"), pgettext_lazy("admin", "alert delivery"),
    pgettext_lazy("admin", "alert deliveries"),
)
FIELDS = (
    pgettext_lazy("admin", "accepted at"), pgettext_lazy("admin", "accepted by"), pgettext_lazy("admin", "access expires at"),
    pgettext_lazy("admin", "account id"), pgettext_lazy("admin", "acknowledged at"), pgettext_lazy("admin", "acknowledged by"),
    pgettext_lazy("admin", "action"), pgettext_lazy("admin", "active"), pgettext_lazy("admin", "active from version"),
    pgettext_lazy("admin", "actor"), pgettext_lazy("admin", "actor label"), pgettext_lazy("admin", "actor number"),
    pgettext_lazy("admin", "admitted at"), pgettext_lazy("admin", "alias"), pgettext_lazy("admin", "allowed efforts"),
    pgettext_lazy("admin", "allowed models"), pgettext_lazy("admin", "amount"), pgettext_lazy("admin", "anchor"),
    pgettext_lazy("admin", "applied at"), pgettext_lazy("admin", "asked"), pgettext_lazy("admin", "asked amount"),
    pgettext_lazy("admin", "attempts"), pgettext_lazy("admin", "base quota"), pgettext_lazy("admin", "base short credits"),
    pgettext_lazy("admin", "base url"), pgettext_lazy("admin", "base weekly credits"), pgettext_lazy("admin", "cache write"),
    pgettext_lazy("admin", "cache write tokens"), pgettext_lazy("admin", "cached input"),
    pgettext_lazy("admin", "cached input tokens"), pgettext_lazy("admin", "card"), pgettext_lazy("admin", "changed at"),
    pgettext_lazy("admin", "channel"), pgettext_lazy("admin", "charging mode"), pgettext_lazy("admin", "chatgpt account id"),
    pgettext_lazy("admin", "client id"), pgettext_lazy("admin", "closed at"), pgettext_lazy("admin", "code"),
    pgettext_lazy("admin", "concurrency cap"), pgettext_lazy("admin", "config version"), pgettext_lazy("admin", "corrects"),
    pgettext_lazy("admin", "count"), pgettext_lazy("admin", "counted"), pgettext_lazy("admin", "counted requests"),
    pgettext_lazy("admin", "counted tokens"), pgettext_lazy("admin", "created at"), pgettext_lazy("admin", "created by"),
    pgettext_lazy("admin", "credential version"), pgettext_lazy("admin", "credit"), pgettext_lazy("admin", "credits"),
    pgettext_lazy("admin", "currency"), pgettext_lazy("admin", "customer name"), pgettext_lazy("admin", "cut"),
    pgettext_lazy("admin", "data"), pgettext_lazy("admin", "date joined"), pgettext_lazy("admin", "debit"),
    pgettext_lazy("admin", "decided at"), pgettext_lazy("admin", "decided by"), pgettext_lazy("admin", "decision note"),
    pgettext_lazy("admin", "default role"), pgettext_lazy("admin", "description"), pgettext_lazy("admin", "developers see pool"),
    pgettext_lazy("admin", "digest"), pgettext_lazy("admin", "disabled at"), pgettext_lazy("admin", "disabled reason"),
    pgettext_lazy("admin", "display name"), pgettext_lazy("admin", "done"), pgettext_lazy("admin", "drained at"),
    pgettext_lazy("admin", "drained id"), pgettext_lazy("admin", "drawn"), pgettext_lazy("admin", "duration ms"),
    pgettext_lazy("admin", "efforts served"), pgettext_lazy("admin", "email"), pgettext_lazy("admin", "email domains"),
    pgettext_lazy("admin", "ended at"), pgettext_lazy("admin", "endpoint"), pgettext_lazy("admin", "ends at"),
    pgettext_lazy("admin", "error"), pgettext_lazy("admin", "expected"), pgettext_lazy("admin", "expired"),
    pgettext_lazy("admin", "expires at"), pgettext_lazy("admin", "extra"), pgettext_lazy("admin", "facts"),
    pgettext_lazy("admin", "fallback"), pgettext_lazy("admin", "fast allowed"), pgettext_lazy("admin", "fast thousandths"),
    pgettext_lazy("admin", "field"), pgettext_lazy("admin", "file bytes"), pgettext_lazy("admin", "file name"),
    pgettext_lazy("admin", "files"), pgettext_lazy("admin", "filled at"), pgettext_lazy("admin", "finished at"),
    pgettext_lazy("admin", "first name"), pgettext_lazy("admin", "first token ms"), pgettext_lazy("admin", "floor percent"),
    pgettext_lazy("admin", "format"), pgettext_lazy("admin", "found at"), pgettext_lazy("admin", "from overage"),
    pgettext_lazy("admin", "from purchased"), pgettext_lazy("admin", "from quota"), pgettext_lazy("admin", "frozen"),
    pgettext_lazy("admin", "grant version"), pgettext_lazy("admin", "granted"), pgettext_lazy("admin", "granted by"),
    pgettext_lazy("admin", "held"), pgettext_lazy("admin", "hour"), pgettext_lazy("admin", "ID"), pgettext_lazy("admin", "id"),
    pgettext_lazy("admin", "identity"), pgettext_lazy("admin", "imported at"), pgettext_lazy("admin", "input"),
    pgettext_lazy("admin", "input tokens"), pgettext_lazy("admin", "interval seconds"), pgettext_lazy("admin", "ip"),
    pgettext_lazy("admin", "is active"), pgettext_lazy("admin", "is awaited"), pgettext_lazy("admin", "is clamped"),
    pgettext_lazy("admin", "is estimated"), pgettext_lazy("admin", "is implausible"), pgettext_lazy("admin", "is offered"),
    pgettext_lazy("admin", "is on"), pgettext_lazy("admin", "is required"), pgettext_lazy("admin", "is vouched"),
    pgettext_lazy("admin", "issued at"), pgettext_lazy("admin", "issuer"), pgettext_lazy("admin", "joined at"),
    pgettext_lazy("admin", "key"), pgettext_lazy("admin", "key id"), pgettext_lazy("admin", "kind"),
    pgettext_lazy("admin", "label"), pgettext_lazy("admin", "language"), pgettext_lazy("admin", "last at"),
    pgettext_lazy("admin", "last login"), pgettext_lazy("admin", "last name"), pgettext_lazy("admin", "last organization"),
    pgettext_lazy("admin", "last seen at"), pgettext_lazy("admin", "last used at"), pgettext_lazy("admin", "latency ms"),
    pgettext_lazy("admin", "limit uuid"), pgettext_lazy("admin", "line"), pgettext_lazy("admin", "lines"),
    pgettext_lazy("admin", "long context input thousandths"), pgettext_lazy("admin", "long context output thousandths"),
    pgettext_lazy("admin", "long context threshold"), pgettext_lazy("admin", "lot"), pgettext_lazy("admin", "loyalty percent"),
    pgettext_lazy("admin", "member id"), pgettext_lazy("admin", "message"), pgettext_lazy("admin", "metric"),
    pgettext_lazy("admin", "minute"), pgettext_lazy("admin", "model"), pgettext_lazy("admin", "model asked"),
    pgettext_lazy("admin", "model names"), pgettext_lazy("admin", "model served"), pgettext_lazy("admin", "models allowed"),
    pgettext_lazy("admin", "models served"), pgettext_lazy("admin", "month"), pgettext_lazy("admin", "moved at"),
    pgettext_lazy("admin", "multiplier thousandths"), pgettext_lazy("admin", "name"), pgettext_lazy("admin", "need"),
    pgettext_lazy("admin", "next at"), pgettext_lazy("admin", "next number"), pgettext_lazy("admin", "next plan"),
    pgettext_lazy("admin", "next plan at"), pgettext_lazy("admin", "next poll at"), pgettext_lazy("admin", "next try at"),
    pgettext_lazy("admin", "note"), pgettext_lazy("admin", "number"), pgettext_lazy("admin", "object id"),
    pgettext_lazy("admin", "object type"), pgettext_lazy("admin", "occurred at"), pgettext_lazy("admin", "organization id"),
    pgettext_lazy("admin", "origin"), pgettext_lazy("admin", "output"), pgettext_lazy("admin", "output tokens"),
    pgettext_lazy("admin", "overage"), pgettext_lazy("admin", "overage cap"), pgettext_lazy("admin", "overage policy"),
    pgettext_lazy("admin", "overage price"), pgettext_lazy("admin", "overdraft"), pgettext_lazy("admin", "paid at"),
    pgettext_lazy("admin", "part"), pgettext_lazy("admin", "payload"), pgettext_lazy("admin", "payment id"),
    pgettext_lazy("admin", "period"), pgettext_lazy("admin", "period starts at"), pgettext_lazy("admin", "plan type"),
    pgettext_lazy("admin", "poll outcome"), pgettext_lazy("admin", "polled at"), pgettext_lazy("admin", "position"),
    pgettext_lazy("admin", "previous"), pgettext_lazy("admin", "previous until"), pgettext_lazy("admin", "price"),
    pgettext_lazy("admin", "priority"), pgettext_lazy("admin", "provider"), pgettext_lazy("admin", "public id"),
    pgettext_lazy("admin", "quantity"), pgettext_lazy("admin", "quota"), pgettext_lazy("admin", "quota strategy"),
    pgettext_lazy("admin", "rate id"), pgettext_lazy("admin", "raw usage"), pgettext_lazy("admin", "reason"),
    pgettext_lazy("admin", "reasoning tokens"), pgettext_lazy("admin", "recipients"), pgettext_lazy("admin", "record"),
    pgettext_lazy("admin", "reference"), pgettext_lazy("admin", "refreshed at"), pgettext_lazy("admin", "removed at"),
    pgettext_lazy("admin", "repair id"), pgettext_lazy("admin", "repaired at"), pgettext_lazy("admin", "reported plan"),
    pgettext_lazy("admin", "request"), pgettext_lazy("admin", "request id"), pgettext_lazy("admin", "requests"),
    pgettext_lazy("admin", "reset period"), pgettext_lazy("admin", "resets at"), pgettext_lazy("admin", "response code"),
    pgettext_lazy("admin", "response id"), pgettext_lazy("admin", "result"), pgettext_lazy("admin", "revoked at"),
    pgettext_lazy("admin", "role"), pgettext_lazy("admin", "role claim"), pgettext_lazy("admin", "role map"),
    pgettext_lazy("admin", "route"), pgettext_lazy("admin", "safety percent"), pgettext_lazy("admin", "scope"),
    pgettext_lazy("admin", "scope name"), pgettext_lazy("admin", "scopes"), pgettext_lazy("admin", "second factor"),
    pgettext_lazy("admin", "series"), pgettext_lazy("admin", "session"), pgettext_lazy("admin", "sha256"),
    pgettext_lazy("admin", "sign in terms accepted at"), pgettext_lazy("admin", "sign in terms accepted by"),
    pgettext_lazy("admin", "since"), pgettext_lazy("admin", "slug"), pgettext_lazy("admin", "source"),
    pgettext_lazy("admin", "sources"), pgettext_lazy("admin", "staff status"), pgettext_lazy("admin", "started at"),
    pgettext_lazy("admin", "started by"), pgettext_lazy("admin", "starts at"), pgettext_lazy("admin", "state"),
    pgettext_lazy("admin", "status"), pgettext_lazy("admin", "status reason"), pgettext_lazy("admin", "strategy"),
    pgettext_lazy("admin", "stream id"), pgettext_lazy("admin", "superuser status"), pgettext_lazy("admin", "suspended at"),
    pgettext_lazy("admin", "team id"), pgettext_lazy("admin", "terms"), pgettext_lazy("admin", "text"),
    pgettext_lazy("admin", "through entry id"), pgettext_lazy("admin", "tier asked"), pgettext_lazy("admin", "tier billed"),
    pgettext_lazy("admin", "tiers served"), pgettext_lazy("admin", "timezone"), pgettext_lazy("admin", "title"),
    pgettext_lazy("admin", "tokens"), pgettext_lazy("admin", "told"), pgettext_lazy("admin", "told at"),
    pgettext_lazy("admin", "total"), pgettext_lazy("admin", "trace"), pgettext_lazy("admin", "tried at"),
    pgettext_lazy("admin", "tries"), pgettext_lazy("admin", "type"), pgettext_lazy("admin", "uid"),
    pgettext_lazy("admin", "unit price"), pgettext_lazy("admin", "unpriced models"), pgettext_lazy("admin", "until"),
    pgettext_lazy("admin", "uploaded by"), pgettext_lazy("admin", "used"), pgettext_lazy("admin", "used from purchased"),
    pgettext_lazy("admin", "used from quota"), pgettext_lazy("admin", "user agent"), pgettext_lazy("admin", "uuid"),
    pgettext_lazy("admin", "valid from"), pgettext_lazy("admin", "valid to"), pgettext_lazy("admin", "was paused"),
    pgettext_lazy("admin", "weight thousandths"), pgettext_lazy("admin", "window"),
)
DONE = (
    pgettext_lazy("admin", "acknowledged"), pgettext_lazy("admin", "approved"), pgettext_lazy("admin", "changed"),
    pgettext_lazy("admin", "completed"), pgettext_lazy("admin", "ended"), pgettext_lazy("admin", "paused"),
    pgettext_lazy("admin", "refunded"), pgettext_lazy("admin", "removed"), pgettext_lazy("admin", "resumed"),
    pgettext_lazy("admin", "revoked"), pgettext_lazy("admin", "stopped"), pgettext_lazy("admin", "suspended"),
    pgettext_lazy("admin", "taken back"), pgettext_lazy("admin", "taken out"), pgettext_lazy("admin", "tried again"),
)
"""What an action did to its rows: "3 suspended."."""
HINTS = (
    pgettext_lazy("admin", "Designates that this user has all permissions without explicitly assigning them."),
    pgettext_lazy("admin", "Designates whether the user can log into this admin site."),
    pgettext_lazy("admin", "Designates whether this user should be treated as active. Unselect this instead of deleting accounts."),
    pgettext_lazy("admin", "Most credits of a period on invoice; empty: none."),
    pgettext_lazy("admin", "Price of one credit on invoice."),
    pgettext_lazy("admin", "Owners may choose it. Unset for a plan that was made for one customer: its name is nobody else's."),
    pgettext_lazy("admin", "Periods begin on this day of the week or month, in the organization's zone."),
    pgettext_lazy("admin", "Most credits of a period on invoice; empty: the plan's."),
    pgettext_lazy("admin", "Takes over with the next period."),
    pgettext_lazy("admin", "When the next plan takes over: the end of a period."),
)
RATES = (
    pgettext_lazy("admin", "fast mode, times"), pgettext_lazy("admin", "long context above, input tokens"),
    pgettext_lazy("admin", "long context input, times"), pgettext_lazy("admin", "long context output, times"),
    pgettext_lazy("admin", "as input"), pgettext_lazy("admin", "none"), pgettext_lazy("admin", "unpriced"),
)
"""What the stored difference of a rate card names and says, besides the fields of a rate."""
UNFOLD = (
    gettext_noop("All applications"), gettext_noop("Apply Filters"), gettext_noop("Choose file to upload"), gettext_noop("Dark"),
    gettext_noop("Date"), gettext_noop("Date from"), gettext_noop("Date to"), gettext_noop("Expand row"), gettext_noop("False"),
    gettext_noop("Filter navigation items"), gettext_noop("Filters"), gettext_noop("General"), gettext_noop("Go back"),
    gettext_noop("Hide counts"), gettext_noop("History"), gettext_noop("Light"), gettext_noop("Loading more results..."),
    gettext_noop("More actions"),
    gettext_noop("No data"), gettext_noop("No recent searches"), gettext_noop("No results found"),
    gettext_noop("No results matching your query"), gettext_noop("Not enough data."), gettext_noop("Recent searches"),
    gettext_noop("Record picture"), gettext_noop("Reset filters"), gettext_noop("Return to site"), gettext_noop("Run"),
    gettext_noop("Search apps and models..."), gettext_noop("Select action"), gettext_noop("Select action to run"),
    gettext_noop("Select all objects on this page for an action"), gettext_noop("Select all rows"), gettext_noop("Select record"),
    gettext_noop("Select value"), gettext_noop("Show counts"), gettext_noop("Submit"), gettext_noop("System"),
    gettext_noop("This page yielded into no results. Create a new item or reset your filters."), gettext_noop("True"),
    gettext_noop("TOTP Authenticator"), gettext_noop("Type to search"), gettext_noop("Value"),
    gettext_noop("View selected %(model)s"), gettext_noop("WebAuthn"), gettext_noop("Welcome"),
    ngettext_lazy("Please correct the error below.", "Please correct the errors below."), ngettext_lazy("entry", "entries"),
    ngettext_lazy(
        "\n                Found %(counter)s result in %(time)s seconds\n            ",
        "\n                Found %(counter)s results in %(time)s seconds\n            ",
    ),
)
"""What unfold and the models of others say, where their own catalogs do not have it."""
# fmt: on
