"""Every row trains as stock Keras does."""

import pytest

from experiments.keras_users.compare import Row, compare
from experiments.keras_users.rows import ROWS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_equals_stock(row: Row) -> None:
    if row.package:
        pytest.importorskip(row.package)
    difference = compare(row)
    assert difference.exact_integers
    assert difference.largest <= row.tolerance, {k: v for k, v in difference.details.items() if v > row.tolerance}
    assert not row.recomputes or difference.recomputed_nodes > 0
