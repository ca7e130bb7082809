"""Makes the documentation site: ``python -m docs.make`` (or ``make docs``) writes it to out/site, without a network."""
