"""What accounts refuses.

AccountsError
├─ NameInvalid            a name that is empty, too long or not printable
├─ NotFound               no such organization, person, team or key
├─ OrganizationError
│  └─ ZoneUnknown
├─ MemberError
│  ├─ EmailInvalid
│  ├─ AlreadyMember
│  ├─ MemberRemoved       the person has left; nothing may be done for them any more
│  ├─ LastOwner           an organization keeps an owner
│  ├─ NotAwaited          the person has come in already: there is nothing to invite them to
│  ├─ TeamNotForRole      owners belong to the whole organization
│  ├─ RoleNotYours        leads look after the developers of their scope; the rest is an owner's
│  └─ PasswordRefused     facts: reasons (list of sentences)
├─ ApiKeyError
│  ├─ RoleHoldsNoKeys     finance sees money, and no keys
│  ├─ ExpiryPassed
│  ├─ KeyRevoked          an ended key cannot be given a new secret
│  └─ GraceInvalid
├─ ApiTokenError
│  ├─ TokenScopeUnknown   no token is made for that
│  └─ TokenScopeMissing   this token was made for something else
├─ SecondFactorError
│  ├─ PolicyUnknown       no such sign-in policy
│  └─ SecondFactorMissing who asks for a second factor has none
├─ IdentityError
│  ├─ ProviderInvalid     settings of an identity provider that cannot be; facts: field
│  ├─ ProviderUnreachable no answer, or none that can be used, from an identity provider
│  └─ SignInRefused       what the provider says of the person does not let them in
├─ ParameterInvalid       a query parameter that the API does not take, or not so
├─ JobError               about long work
│  ├─ JobKindUnknown
│  ├─ JobNotFound         also one that is not the asker's to know of
│  ├─ JobForbidden        the role does not allow it, or not any more
│  ├─ TooManyJobs         the organization has enough of them waiting
│  ├─ JobOver             there is no file to fetch: not yet, or not any more
│  ├─ JobBroken           it cannot be done, and this is why
│  └─ LinkInvalid         wrong, of a file that is gone, or of a right that was lost: one answer
│     └─ LinkExpired
└─ InvitationInvalid      unknown, used or expired: one answer for the three
"""

from typing import ClassVar

from config.errors import DomainError


class AccountsError(DomainError):
    code: ClassVar[str] = "accounts_error"


class NameInvalid(AccountsError):
    code: ClassVar[str] = "name_invalid"


class NotFound(AccountsError):
    code: ClassVar[str] = "not_found"
    status: ClassVar[int] = 404


class OrganizationError(AccountsError):
    code: ClassVar[str] = "organization_invalid"


class ZoneUnknown(OrganizationError):
    code: ClassVar[str] = "timezone_unknown"


class MemberError(AccountsError):
    code: ClassVar[str] = "member_invalid"


class EmailInvalid(MemberError):
    code: ClassVar[str] = "email_invalid"


class AlreadyMember(MemberError):
    code: ClassVar[str] = "already_member"
    status: ClassVar[int] = 409


class MemberRemoved(MemberError):
    code: ClassVar[str] = "member_removed"
    status: ClassVar[int] = 409


class LastOwner(MemberError):
    code: ClassVar[str] = "last_owner"
    status: ClassVar[int] = 409


class NotAwaited(MemberError):
    code: ClassVar[str] = "not_awaited"
    status: ClassVar[int] = 409


class TeamNotForRole(MemberError):
    code: ClassVar[str] = "team_not_for_role"


class RoleNotYours(MemberError):
    code: ClassVar[str] = "role_not_yours"
    status: ClassVar[int] = 403


class PasswordRefused(MemberError):
    code: ClassVar[str] = "password_refused"


class ApiKeyError(AccountsError):
    code: ClassVar[str] = "key_invalid"


class RoleHoldsNoKeys(ApiKeyError):
    code: ClassVar[str] = "role_holds_no_keys"
    status: ClassVar[int] = 403


class ExpiryPassed(ApiKeyError):
    code: ClassVar[str] = "expiry_passed"


class KeyRevoked(ApiKeyError):
    code: ClassVar[str] = "key_revoked"
    status: ClassVar[int] = 409


class KeyRotated(ApiKeyError):
    code: ClassVar[str] = "key_rotated"
    status: ClassVar[int] = 409


class GraceInvalid(ApiKeyError):
    code: ClassVar[str] = "grace_invalid"


class ApiTokenError(AccountsError):
    code: ClassVar[str] = "token_invalid"


class TokenScopeUnknown(ApiTokenError):
    """Facts: scopes."""

    code: ClassVar[str] = "scope_unknown"


class TokenScopeMissing(ApiTokenError):
    """Facts: scope."""

    code: ClassVar[str] = "insufficient_scope"
    status: ClassVar[int] = 403


class IdentityError(AccountsError):
    code: ClassVar[str] = "identity_error"


class ProviderInvalid(IdentityError):
    """Facts: field."""

    code: ClassVar[str] = "identity_provider_invalid"


class ProviderUnreachable(IdentityError):
    code: ClassVar[str] = "identity_provider_unreachable"
    status: ClassVar[int] = 502


class SignInRefused(IdentityError):
    code: ClassVar[str] = "sign_in_refused"
    status: ClassVar[int] = 403


class ParameterInvalid(AccountsError):
    """Facts: param."""

    code: ClassVar[str] = "parameter_invalid"


class InvitationInvalid(AccountsError):
    code: ClassVar[str] = "invitation_invalid"
    status: ClassVar[int] = 410


class JobError(AccountsError):
    code: ClassVar[str] = "job_invalid"


class JobKindUnknown(JobError):
    code: ClassVar[str] = "job_kind_unknown"


class JobNotFound(JobError):
    code: ClassVar[str] = "not_found"
    status: ClassVar[int] = 404


class JobForbidden(JobError):
    code: ClassVar[str] = "permission_denied"
    status: ClassVar[int] = 403


class TooManyJobs(JobError):
    code: ClassVar[str] = "too_many_jobs"
    status: ClassVar[int] = 429


class JobOver(JobError):
    code: ClassVar[str] = "file_not_there"
    status: ClassVar[int] = 410


class JobBroken(JobError):
    code: ClassVar[str] = "job_failed"
    status: ClassVar[int] = 500


class LinkInvalid(JobError):
    code: ClassVar[str] = "link_invalid"
    status: ClassVar[int] = 404


class LinkExpired(LinkInvalid):
    """Facts: slug, of the organization."""

    code: ClassVar[str] = "link_expired"
    status: ClassVar[int] = 410


class SecondFactorError(AccountsError):
    code: ClassVar[str] = "second_factor_invalid"


class PolicyUnknown(SecondFactorError):
    code: ClassVar[str] = "policy_unknown"


class SecondFactorMissing(SecondFactorError):
    code: ClassVar[str] = "second_factor_missing"
    status: ClassVar[int] = 409


class SecondFactorNeeded(SecondFactorError):
    code: ClassVar[str] = "second_factor_needed"
    status: ClassVar[int] = 409
