"""What a name may be: text that people can read, tell apart and find again."""

import unicodedata

from django.utils.translation import gettext as _

from accounts.errors import NameInvalid


def checked(text: str, *, what: str, longest: int, field: str = "") -> str:
    """The name in one spelling (NFC, no spaces around, inner runs of spaces as one).

    Raises NameInvalid for an empty or too long one, and for control and direction characters, which would make a name look
    like another; it tells the `field` that the name stood in, if there is one.
    """
    facts = {"field": field} if field else {}
    name = unicodedata.normalize("NFC", " ".join(text.split()))
    if not name:
        raise NameInvalid(_("%(what)s must not be empty.") % {"what": what}, **facts)
    if len(name) > longest:
        raise NameInvalid(
            _("%(what)s has more than %(longest)s characters.") % {"what": what, "longest": longest}, longest=longest, **facts
        )
    # Zero-width joiners (Cf) are part of emoji and of several scripts, so of the format characters only those that turn the
    # direction of reading are refused.
    if any(unicodedata.category(character) in {"Cc", "Cs", "Co", "Cn"} or character in _TURNING for character in name):
        raise NameInvalid(_("%(what)s holds characters that cannot be shown.") % {"what": what}, **facts)
    return name


_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
