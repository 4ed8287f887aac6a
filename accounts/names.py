"""What a name may be: text that people can read, tell apart and find again."""

import unicodedata

from accounts.errors import NameInvalid


def checked(text: str, *, what: str, longest: int) -> str:
    """The name in one spelling (NFC, no spaces around, inner runs of spaces as one).

    Raises NameInvalid for an empty or too long one, and for control and direction characters, which would make a name look
    like another.
    """
    name = unicodedata.normalize("NFC", " ".join(text.split()))
    if not name:
        raise NameInvalid(f"{what} must not be empty.")
    if len(name) > longest:
        raise NameInvalid(f"{what} has more than {longest} characters.", longest=longest)
    # Zero-width joiners (Cf) are part of emoji and of several scripts, so of the format characters only those that turn the
    # direction of reading are refused.
    if any(unicodedata.category(character) in {"Cc", "Cs", "Co", "Cn"} or character in _TURNING for character in name):
        raise NameInvalid(f"{what} holds characters that cannot be shown.")
    return name


_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
