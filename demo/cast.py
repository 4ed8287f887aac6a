"""The invented organizations of the demo: who is in them, which accounts they pool, which limits they set. Only data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Person:
    """`pace`: how much they work with agents, in hundredths of the usual; 0 for who has no key."""

    name: str
    email: str
    role: str
    team: str | None = None
    pace: int = 0


@dataclass(frozen=True, slots=True)
class SignIn:
    """A ChatGPT account at the scripted upstream, and how much of its windows is used when the demo begins."""

    label: str
    account_id: str
    email: str
    plan: str
    short_percent: int
    week_percent: int


@dataclass(frozen=True, slots=True)
class Cap:
    """`of`: a team's name or a person's e-mail; for the scope key, the e-mail of the person whose key it is. `amount` as typed."""

    scope: str
    of: str
    metric: str
    window: str
    amount: str


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    slug: str
    timezone: str
    plan: str
    people: tuple[Person, ...]
    sign_ins: tuple[SignIn, ...]
    api_key_label: str
    caps: tuple[Cap, ...]


OPERATOR = "operator@weir.example"

NORTHWIND = Tenant(
    name="Northwind Labs",
    slug="northwind-labs",
    timezone="Europe/Berlin",
    plan="business",
    people=(
        Person("Mira Solheim", "mira.solheim@northwind.example", "owner", pace=20),
        Person("Priya Raman", "priya.raman@northwind.example", "lead", pace=60),
        Person("Anselm Okoye", "anselm.okoye@northwind.example", "lead", "Platform", pace=80),
        Person("Dario Keller", "dario.keller@northwind.example", "developer", "Platform", pace=140),
        Person("Lena Achterberg", "lena.achterberg@northwind.example", "developer", "Platform", pace=100),
        Person("Tomasz Wrona", "tomasz.wrona@northwind.example", "developer", "Platform", pace=70),
        Person("Inés Castell", "ines.castell@northwind.example", "developer", "Apps", pace=120),
        Person("Yuki Tanabe", "yuki.tanabe@northwind.example", "developer", "Apps", pace=90),
        Person("Ольга Леонова", "olga.leonova@northwind.example", "developer", "Apps", pace=40),
        Person("Ruth Adeyemi", "ruth.adeyemi@northwind.example", "finance"),
    ),
    sign_ins=(
        SignIn("Dario's Plus", "acct_demo_northwind_1", "dario.keller@northwind.example", "plus", 46, 31),
        SignIn("Inés' Plus", "acct_demo_northwind_2", "ines.castell@northwind.example", "plus", 12, 58),
        SignIn("Mira's Pro", "acct_demo_northwind_3", "mira.solheim@northwind.example", "pro", 8, 22),
    ),
    api_key_label="Company API key",
    caps=(
        Cap("organization", "", "credits", "month", "12000"),
        Cap("team", "Platform", "credits", "week", "1500"),
        Cap("team", "Apps", "credits", "week", "1200"),
        Cap("member", "dario.keller@northwind.example", "credits", "day", "400"),
        Cap("member", "ines.castell@northwind.example", "credits", "day", "350"),
        Cap("member", "olga.leonova@northwind.example", "requests", "day", "200"),
        Cap("key", "tomasz.wrona@northwind.example", "tokens", "week", "12000000"),
    ),
)

HALCYON = Tenant(
    name="Halcyon",
    slug="halcyon",
    timezone="America/New_York",
    plan="plus",
    people=(
        Person("Grace Whitfield", "grace.whitfield@halcyon.example", "owner", pace=30),
        Person("Sam Ortega", "sam.ortega@halcyon.example", "lead", pace=70),
        Person("Noor Haddad", "noor.haddad@halcyon.example", "developer", pace=120),
        Person("Eli Brandt", "eli.brandt@halcyon.example", "developer", pace=90),
        Person("June Park", "june.park@halcyon.example", "finance"),
    ),
    sign_ins=(
        SignIn("Grace's Plus", "acct_demo_halcyon_1", "grace.whitfield@halcyon.example", "plus", 25, 64),
        SignIn("Noor's Plus", "acct_demo_halcyon_2", "noor.haddad@halcyon.example", "plus", 5, 17),
    ),
    api_key_label="Fallback API key",
    caps=(
        Cap("organization", "", "credits", "month", "5000"),
        Cap("member", "noor.haddad@halcyon.example", "credits", "day", "300"),
        Cap("key", "eli.brandt@halcyon.example", "credits", "week", "500"),
    ),
)

TERN = Tenant(
    name="Tern Studio",
    slug="tern-studio",
    timezone="Asia/Ho_Chi_Minh",
    plan="free",
    people=(Person("Mira Solheim", "mira.solheim@northwind.example", "owner"),),
    sign_ins=(),
    api_key_label="",
    caps=(),
)
"""Begun a moment ago: nobody has set anything up, and who owns it owns Northwind too."""

TENANTS = (NORTHWIND, HALCYON)
