"""Which checks there are: what a module defines is run."""

import pkgutil
from importlib import import_module

import anbar.testing.engine_contract as contract
from anbar.testing.engine_contract import ALL, EMBEDDING, ESSENTIAL, checks_of


def test_every_check_is_listed() -> None:
    """No check of any module is forgotten, and none runs twice."""
    modules = [
        import_module(f"{contract.__name__}.{found.name}")
        for found in pkgutil.iter_modules(contract.__path__)
        if found.name != "__main__"
    ]
    defined = checks_of(*modules)
    assert set(defined) == {*ALL, *EMBEDDING}
    assert len(ALL) == len(set(ALL))
    assert len(EMBEDDING) == len(set(EMBEDDING))
    assert set(ESSENTIAL) < set(ALL)
