"""What the journals say, made for people: stories and claims, words, charts and pages. Reads only; both the command
line and the server tell it. Not who shows it: nothing here knows a terminal's flags or a request."""
