import inspect

from joulewise.core import errors


def test_every_error_is_in_the_tree_drawn_in_the_docstring_and_only_those():
    classes = {n for n, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)}
    drawn = {word for line in errors.__doc__.splitlines() for word in line.replace("│", " ").split()[:2]}
    assert all(issubclass(getattr(errors, name), errors.JoulewiseError) for name in classes)
    assert classes <= drawn
