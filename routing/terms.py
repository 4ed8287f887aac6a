"""The text that an owner accepts before sign-in accounts may be pooled."""

SIGN_IN_TERMS = """\
You are about to put a personal sign-in account into a pool that other people use.

The provider's terms of service may forbid giving others access to such an account, and the provider may limit or close it.
Weir cannot permit what the provider forbids. By accepting, you confirm for your organization that you have read the
provider's terms, that you may pool this account under them, and that the person it belongs to has agreed.

That person is named on the account, and may withdraw it at any time. Accounts with an API key need none of this.
Your acceptance is recorded with your name and the time.\
"""
