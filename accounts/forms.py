"""Forms of the accounts pages; rules live in the domain modules."""

from django import forms


class JoinForm(forms.Form):
    """Accepting a one-time link: one's name and password; the first owner also names the organization."""

    organization = forms.CharField(max_length=120, required=False, label="Organization")
    email = forms.EmailField(max_length=254, required=False, label="Work e-mail")
    name = forms.CharField(max_length=120, label="Your name")
    password = forms.CharField(widget=forms.PasswordInput, label="Password", strip=False, max_length=200)


class IssueKeyForm(forms.Form):
    name = forms.CharField(max_length=80, label="Name")
