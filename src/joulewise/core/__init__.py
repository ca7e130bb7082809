"""The vocabulary of joulewise: frozen dataclasses and pure functions, standard library only."""
