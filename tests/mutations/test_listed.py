"""The list of mutations is up to date with the code that they change."""

from tests.mutations.__main__ import ROOT, source_of
from tests.mutations.listed import MUTATIONS


def test_every_mutation_still_has_its_place_and_its_tests() -> None:
    assert len(MUTATIONS) >= 60
    assert len({(mutation.path, mutation.old, mutation.new) for mutation in MUTATIONS}) == len(MUTATIONS)
    for mutation in MUTATIONS:
        mutated = mutation.apply(source_of(mutation.path).read_text(encoding="utf-8"))
        compile(mutated, mutation.path, "exec")
        for test in mutation.tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).exists()
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8") if name else True
