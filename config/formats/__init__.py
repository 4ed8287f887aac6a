"""How Django's own pages, those of the admin, write days and moments where its formats are not fit for columns."""
